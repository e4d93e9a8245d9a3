"""The predicted end of a start, as clients get it."""

from __future__ import annotations

from clocks import Clock

from sparkfleet.controlplane.state.start_forecast import StartForecast
from sparkfleet.gateway.errors.model_errors import not_ready
from sparkfleet.gateway.routing_table import ModelEntry
from sparkfleet.group.report import GroupPhase, GroupReport


def report(phase: str, replica: int = 0, **more: object) -> GroupReport:
    return GroupReport.model_validate(
        {
            "deployment": "tiny",
            "generation": 1,
            "replica": replica,
            "phase": GroupPhase(phase),
            "node": "a",
            "since": 0.0,
            **more,
        }
    )


def forecast(clock: Clock, earlier: float | None = None, predicted: float | None = None) -> StartForecast:
    return StartForecast(clock, lambda deployment: earlier, lambda report: predicted)


def test_a_start_ends_as_long_after_its_beginning_as_the_last_one() -> None:
    clock = Clock()
    starts = forecast(clock)
    starts.see(report("preparing"))
    assert starts.ready_at() == {}  # nothing is known of it
    starts.see(report("ready", started_s=90.0))
    clock.now = 2000.0
    starts.see(report("starting"))
    clock.now = 2030.0
    starts.see(report("probing"))
    starts.see(report("starting", replica=1))
    assert starts.ready_at() == {"tiny": 2090.0}
    starts.see(report("failed"))
    assert starts.ready_at() == {"tiny": 2120.0}
    starts.see(report("ready", replica=1, started_s=60.0, adopted=True))
    assert starts.ready_at() == {}
    starts.see(report("starting"))
    assert starts.ready_at() == {"tiny": clock.now + 90}  # an adopted engine says nothing of a start


def test_clients_are_told_the_rest_of_it() -> None:
    entry = ModelEntry(name="tiny", deployment="e", state="starting", retry_after_s=10, ready_at=2090.0)
    assert [entry.retry_s(now) for now in (2000.0, 2089.5, 2090.0, 3000.0, -1e9)] == [90, 1, 10, 10, 3600]
    assert dict(not_ready(entry, 0.0).headers)[b"retry-after"] == b"2090"
    assert dict(not_ready(entry, 3000.0).headers)[b"retry-after"] == b"10"


def test_a_start_that_was_ended_in_the_middle_is_forgotten_with_its_group() -> None:
    """A deleted group reports no end: each later start of its deployment was expected to have ended long ago."""
    clock = Clock()
    starts = forecast(clock)
    starts.see(report("ready", started_s=90.0))
    starts.see(report("starting", replica=1))
    clock.now += 3600.0
    starts.see(report("starting"))
    starts.forget([("tiny", 1, 0)])
    assert starts.ready_at() == {"tiny": clock.now + 90.0}


def test_the_first_start_ends_when_its_plan_predicts_it() -> None:
    clock = Clock()
    starts = forecast(clock, predicted=400.0)
    starts.see(report("preparing"))
    assert starts.ready_at() == {"tiny": clock.now + 400.0}
    assert starts.last_start_s("tiny") is None, "nothing was measured"
    starts.see(report("ready", started_s=90.0))
    starts.see(report("starting", replica=1))
    assert starts.ready_at() == {"tiny": clock.now + 90.0}
    starts.forget([])
    assert starts.ready_at() == {}


def test_a_start_before_the_controllers_own_is_known_and_read_once() -> None:
    clock, read = Clock(), []

    def earlier(deployment: str) -> float:
        read.append(deployment)
        return 212.0

    starts = StartForecast(clock, earlier, lambda report: 400.0)
    starts.see(report("starting"))
    assert starts.ready_at() == {"tiny": clock.now + 212.0}
    assert starts.last_start_s("tiny") == 212.0
    assert read == ["tiny"]
    starts.see(report("ready", started_s=90.0))
    assert starts.last_start_s("tiny") == 90.0
