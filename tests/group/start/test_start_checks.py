"""The measurement of a start, with the tokens per step that its own text had."""

import pytest
from control_values import plan
from group_world import group_launch

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.group.engine_load import Load
from sparkfleet.group.probe import StreamMeasurement
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.report_sender import ReportSender
from sparkfleet.group.start import start_checks
from sparkfleet.group.start.speed import RUNS, MeasuringTurns
from sparkfleet.group.start.start_checks import LATER_S, StartChecks
from sparkfleet.perf.prediction import Speculation

MTP = Speculation(method="mtp", tokens=3)


class Engine:
    """An engine with vLLM's counters, whose stream of 64 tokens takes so many steps."""

    def __init__(self, steps):
        self.engine, self.probe = engine_by_name("vllm"), self
        self.steps, self.counted = steps, 7

    async def measure(self):
        self.counted += self.steps
        return StreamMeasurement(ttft_ms=20.0, decode_tps=30.0, tokens=64)

    async def gauges(self, path, names):
        proposed, accepted, steps = names
        return {proposed: 3.0 * self.counted, accepted: 2.2 * self.counted, steps: float(self.counted)}


class Uneven(Engine):
    """An engine of whose streams every third one comes in one piece, until its fourth measurement."""

    def __init__(self):
        super().__init__(20)
        self.streams = 0
        self.load = Load(running=0, waiting=0, figures=(0.0,))

    async def measure(self):
        self.streams += 1
        is_whole = self.streams % RUNS == 0 and self.streams < 4 * RUNS
        return StreamMeasurement(ttft_ms=20.0, decode_tps=100_000.0 if is_whole else 30.0, tokens=64)

    async def read_load(self):
        return self.load


async def test_streams_without_a_rate_are_measured_again_after_ever_longer_pauses(tmp_path, monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    launch = group_launch()
    reports = ReportSender(launch, lambda report: None)
    checks = StartChecks(launch, reports, Uneven(), MeasuringTurns(tmp_path / "turns"))
    reports.enter(GroupPhase.READY, measured=await checks._measure(1.0))
    assert "decode_tps" not in reports.last.measured
    monkeypatch.setattr(start_checks.asyncio, "sleep", sleep)
    await checks.measure_once_idle()
    assert reports.last.measured["decode_tps"] == 30.0
    assert pauses == [LATER_S, 2 * LATER_S, 4 * LATER_S]


@pytest.fixture
def measured(tmp_path):
    async def measured(steps, speculation):
        launch = group_launch()
        candidate = plan(speculation=speculation).groups[0].choice.candidate
        launch = launch.model_copy(update={"candidate": candidate})
        turns = MeasuringTurns(tmp_path / "turns")
        reports = ReportSender(launch, lambda report: None)
        return await StartChecks(launch, reports, Engine(steps), turns)._measure(1.0)

    return measured


async def test_a_measurement_has_the_tokens_per_step_of_its_own_streams(measured):
    found = await measured(20, MTP)
    assert found["tokens_per_step"] == pytest.approx(3.2)
    assert (found["decode_tps"], found["measured_runs"]) == (30.0, RUNS)


@pytest.mark.parametrize(("steps", "speculation"), [(20, Speculation()), (0, MTP), (6, MTP)])
async def test_without_speculation_or_with_few_steps_it_has_none(measured, steps, speculation):
    assert "tokens_per_step" not in await measured(steps, speculation)
