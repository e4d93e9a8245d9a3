"""Measurements of running deployments are evidence for further plans, and next to what was predicted of it."""

import pytest
import statuses

from sparkfleet.cli.deployment import apply, describe
from sparkfleet.cli.planning import plan as planning
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.controlplane.state.tables.bench_table import BenchLoad, BenchResult, bench_setup_of
from sparkfleet.fleet.deployments.status import DescribedDeployment
from sparkfleet.fleet.planning.fleet_decision import decide, planned_with
from sparkfleet.fleet.planning.group_measurements import (
    canary_words,
    measured_lines,
    measured_words,
    measurements_of,
)
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.hostfacts.node import Gpu, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.prediction import Provenance
from sparkfleet.perf.workload import CHECK, usual
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.explain.layout import band_ends
from sparkfleet.specs.deployment import Deployment

MODEL = "Qwen/Qwen3.6-27B-FP8"
KNOWN = {MODEL: known_checkpoint(MODEL)}
NOON = 1_795_176_000.0  # 2026-11-20 12:00 UTC


def spark(name="spark1"):
    return NodeFacts(
        name=name,
        memory=UnifiedMemory(total=130_600_000_000, available=118_000_000_000),
        processors=Processors(count=20, machine="aarch64"),
        gpu=Gpu(name="NVIDIA GB10", driver="580.142"),
        engines={},
    )


@pytest.fixture
def fleet():
    return Fleet(name="home", nodes=(spark(),), assumed=("spark1",))


@pytest.fixture
def spec():
    return Deployment.model_validate({"name": "m", "model": MODEL, "engine": "sglang", "speculation": "none"})


@pytest.fixture
def plan(spec, fleet):
    return plan_fleet([spec], fleet, KNOWN).deployments[0]


def report(**fields):
    base = {
        "deployment": "m",
        "generation": 1,
        "replica": 0,
        "phase": GroupPhase.READY,
        "node": "spark1",
        "since": NOON,
    }
    return GroupReport(**{**base, "measured": {"ttft_ms": 200.0, "decode_tps": 6.0}, **fields})


def bench_result(candidate, requests, **speeds):
    load = BenchLoad(content="mixed", prompt=2048, answer=256, concurrency=requests)
    speeds = {"ttft_ms": 2500.0, "request_tps": 6.0, "group_tps": 6.0, **speeds}
    return BenchResult(setup=bench_setup_of(candidate), load=load, at=NOON, **speeds)


def running(spec, plan, *reports, generation=1):
    return DeploymentStatus(
        name="m", generation=generation, state="ready", detail="", who="me", since=0.0, plan=plan,
        groups=reports, spec=spec.model_dump_json(),
    )  # fmt: skip


def status(*deployments):
    return statuses.fleet(*deployments)


class TestEvidence:
    def test_a_group_that_is_ready_is_one_measurement_of_its_rung(self, spec, plan):
        (one,) = measurements_of(status(running(spec, plan, report())))
        candidate = plan.groups[0].choice.candidate
        assert (one.model, one.engine, one.tp, one.method) == (MODEL, "sglang", 1, "none")
        assert (one.k, one.point.workload) == (candidate.speculation.tokens, CHECK)
        assert (one.point.ttft_ms, one.point.decode_tps_per_request, one.point.when) == (
            200.0,
            6.0,
            "2026-11-20",
        )

    def test_of_the_rung_that_runs_not_of_the_first(self, fleet):
        spec = Deployment.model_validate({"name": "m", "model": MODEL, "engine": "sglang"})
        plan = plan_fleet([spec], fleet, KNOWN).deployments[0]
        first, second = plan.groups[0].ladder[:2]
        assert first.candidate.speculation != second.candidate.speculation
        (one,) = measurements_of(status(running(spec, plan, report(rung=1))))
        assert (one.method, one.k) == (
            second.candidate.speculation.method,
            second.candidate.speculation.tokens,
        )

    def test_the_middle_of_equal_groups(self, spec, plan):
        three = plan.model_copy(update={"groups": plan.groups * 3})
        reports = [report(replica=n, measured={"decode_tps": tps}) for n, tps in enumerate((5.0, 9.0, 6.0))]
        (one,) = measurements_of(status(running(spec, three, *reports)))
        assert one.point.decode_tps_per_request == 6.0
        assert one.point.ttft_ms is None

    def test_what_bench_measured_is_one_of_its_load_also_if_nothing_runs(self, spec, plan, fleet):
        """A plan for the same requests has the measured figures; one for more of them is corrected."""
        candidate = plan.groups[0].choice.candidate
        alone = bench_result(candidate, 1, ttft_ms=2500.0, request_tps=6.0)
        four = bench_result(candidate, 4, ttft_ms=5000.0, request_tps=5.5, group_tps=19.0)
        runs = statuses.fleet(bench=(alone, four))
        first, second = measurements_of(runs)
        assert (first.model, first.engine, first.tp, first.method) == (MODEL, "sglang", 1, "none")
        assert (first.point.workload, second.point.workload) == (usual(32768, 1), usual(32768, 4))
        assert first.point.when == "2026-11-20"
        found = planned_with([spec], fleet, runs, KNOWN).deployments[0].groups[0].choice.prediction
        assert found.concurrency == 4
        assert (found.ttft_ms.mid, found.decode_tps_per_request.mid, found.decode_tps_aggregate.mid) == (
            2500.0,
            6.0,
            19.0,
        )
        assert found.decode_tps_aggregate.provenance is Provenance.MEASURED
        assert found.decode_tps_aggregate.basis == "measured here 2026-11-20: 19 at 4 at once"
        assert found.prefill_tps.provenance is not Provenance.MEASURED

    @pytest.mark.parametrize(
        "change", [{"model": "o/other"}, {"tp": 2}, {"dcp": 2}, {"engine": "vllm"}, {"device": "cpu"}]
    )
    def test_what_bench_measured_of_another_setup_changes_nothing(self, spec, plan, fleet, change):
        result = bench_result(plan.groups[0].choice.candidate, 1, request_tps=1.0)
        other = result.model_copy(update={"setup": result.setup.model_copy(update=change)})
        runs = statuses.fleet(bench=(other,))
        assert planned_with([spec], fleet, runs, KNOWN) == planned_with([spec], fleet, None, KNOWN)

    @pytest.mark.parametrize(
        "fields",
        [{"phase": GroupPhase.STARTING}, {"generation": 2}, {"replica": 9}, {"rung": 9}, {"measured": {}}],
    )
    def test_what_is_not_known_to_be_this_plans_is_none(self, spec, plan, fields):
        assert measurements_of(status(running(spec, plan, report(**fields)))) == ()

    def test_nothing_runs(self, spec):
        assert measurements_of(None) == ()
        assert measurements_of(status(running(spec, None, report()))) == ()

    def test_on_a_cpu_it_says_nothing_of_gpus(self, spec, plan):
        rung = plan.groups[0].choice
        on_cpu = rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"device": "cpu"})})
        group = plan.groups[0].model_copy(update={"ladder": (on_cpu,)})
        assert (
            measurements_of(status(running(spec, plan.model_copy(update={"groups": (group,)}), report())))
            == ()
        )


class TestPlans:
    def test_predictions_of_what_runs_say_measured(self, spec, plan, fleet):
        runs = status(running(spec, plan, report()))
        prediction = planned_with([spec], fleet, runs, KNOWN).deployments[0].groups[0].choice.prediction
        assert prediction.check_decode_tps.mid == pytest.approx(6.0)
        assert prediction.check_decode_tps.provenance is Provenance.MEASURED
        assert prediction.check_ttft_ms.mid == pytest.approx(200.0)
        assert prediction.decode_tps_per_request.basis == "measured here 2026-11-20: 6 at 1 at once"
        before = plan.groups[0].choice.prediction
        assert prediction.decode_tps_per_request.mid < before.decode_tps_per_request.mid
        assert prediction.ttft_ms == before.ttft_ms, "one word answered says nothing of two thousand"

    def test_what_runs_is_kept_however_slow_it_is(self, fleet):
        spec = Deployment.model_validate({"name": "m", "model": MODEL, "engine": "sglang"})
        plan = plan_fleet([spec], fleet, KNOWN).deployments[0]
        crawls = status(running(spec, plan, report(measured={"decode_tps": 0.5})))
        (planned,) = decide([spec], fleet, crawls, KNOWN).planned
        assert planned.change.verb == "keep"
        (told,) = planned.measured
        assert "0.5 tok/s for one user (predicted" in told

    def test_what_is_asked_for_anew_follows_it(self, fleet):
        spec = Deployment.model_validate({"name": "m", "model": MODEL, "engine": "sglang"})
        plan = plan_fleet([spec], fleet, KNOWN).deployments[0]
        crawls = status(running(spec, plan, report(measured={"decode_tps": 0.5})))
        changed = Deployment.model_validate(
            {"name": "m", "model": MODEL, "engine": "sglang", "context": 16384}
        )
        (planned,) = decide([changed], fleet, crawls, KNOWN).planned
        assert planned.change.verb == "change"
        ran, runs = (one.groups[0].choice.candidate.speculation.method for one in (plan, planned.plan))
        assert runs != ran


class TestWords:
    def test_predicted_next_to_measured(self, spec, plan):
        deployment = running(spec, plan, report())
        prediction = plan.groups[0].choice.prediction
        words = measured_words(deployment, deployment.groups[0])
        assert words.startswith(f"TTFT 200 ms (predicted {band_ends(prediction.check_ttft_ms)})")
        assert f"6.0 tok/s for one user (predicted {band_ends(prediction.check_decode_tps)})" in words
        assert list(measured_lines(deployment)) == [f"g1/0: {words}"]

    def test_with_drafts_it_has_the_tokens_per_step_of_its_own_text(self, spec, plan):
        drafting = report(measured={"ttft_ms": 200.0, "decode_tps": 6.0, "tokens_per_step": 3.204})
        deployment = running(spec, plan, drafting)
        assert measured_words(deployment, drafting).endswith(", 3.20 tokens per step of that text")
        (one,) = measurements_of(status(deployment))
        assert one.point.accepted == 3.204

    def test_streams_that_differ_too_much_have_no_rate_and_are_no_evidence_of_one(self, spec, plan):
        apart = report(measured={"ttft_ms": 200.0, "decode_tps_spread": 161.91, "measured_runs": 3.0})
        deployment = running(spec, plan, apart)
        words = measured_words(deployment, apart)
        assert words.startswith("TTFT 200 ms (predicted ")
        assert words.endswith("), tok/s not known: its 3 streams are 16191% apart")
        (one,) = measurements_of(status(deployment))
        assert (one.point.ttft_ms, one.point.decode_tps_per_request) == (200.0, None)

    def test_apply_ends_with_it(self, spec, plan, capsys):
        deployment = running(spec, plan, report())
        apply.print_outcome({"m": deployment})
        assert f"m is ready: {measured_words(deployment, report())}\n" in capsys.readouterr().out

    def test_apply_says_so_where_nothing_was_predicted(self, spec, plan, capsys):
        rung = plan.groups[0].choice
        silent = {"check_ttft_ms": None, "check_decode_tps": None}
        plain = rung.model_copy(update={"prediction": rung.prediction.model_copy(update=silent)})
        group = plan.groups[0].model_copy(update={"ladder": (plain,)})
        deployment = running(spec, plan.model_copy(update={"groups": (group,)}), report())
        apply.print_outcome({"m": deployment})
        assert (
            "m is ready: TTFT 200 ms, 6.0 tok/s for one user (measured; not predicted)\n"
            in capsys.readouterr().out
        )

    def test_a_speed_that_is_measured_later_is_no_dash(self, spec, plan, capsys):
        later = report(measured={"text_perplexity": 4.0})
        apply.print_outcome({"m": running(spec, plan, later)})
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith("m is ready: speed not measured yet")
        assert "not predicted" not in first

    def test_each_of_several_groups_has_its_name(self, spec, plan, capsys):
        """They were two equal lines of the deployment."""
        group = plan.groups[0]
        both = running(spec, plan.model_copy(update={"groups": (group, group)}), report(), report(replica=1))
        apply.print_outcome({"m": both})
        lines = [one for one in capsys.readouterr().out.splitlines() if " is ready: " in one]
        assert [line.split(" is ready")[0] for line in lines] == ["m/g1/0", "m/g1/1"]

    def test_a_custom_workload_is_not_to_be_measured(self, spec, plan, capsys):
        """It was promised for later."""
        apply.print_outcome({"m": running(spec, plan, report(engine="custom", measured={}))})
        first = capsys.readouterr().out.splitlines()[0]
        assert first == "m is ready: no speed, as the API of a custom workload is not known"

    def test_describe_shows_it(self, spec, plan, capsys):
        describe._show(DescribedDeployment(running(spec, plan, report()), ()))
        out = capsys.readouterr().out
        assert "    measured: TTFT 200 ms (predicted" in out

    def test_a_plan_of_what_runs_shows_it(self, spec, plan, fleet, capsys):
        runs = status(running(spec, plan, report()))
        planning.print_plans(FleetPlan((spec,), fleet, runs, decide([spec], fleet, runs, KNOWN), None, KNOWN))
        out = capsys.readouterr().out
        assert "  measured    g1/0: TTFT 200 ms (predicted" in out
        assert "= keep  m" in out


def test_what_the_canary_read_is_shown(capsys, spec, plan):
    read = {"text_perplexity": 123.4, "own_perplexity": 1.25, "own_agreement": 0.98, "accepted_share": 0.61}
    words = (
        "perplexity of a known text 123, of its own answer 1.25, 98% of the answer's tokens chosen again,"
        " 61% of draft tokens accepted"
    )
    assert canary_words(report(measured=read)) == words
    assert canary_words(report(measured={}, unchecked=("acceptance",))) == "not checked: acceptance"
    assert canary_words(report()) == ""
    describe._show(DescribedDeployment(running(spec, plan, report(measured=read)), ()))
    assert f"canary: {words}" in " ".join(capsys.readouterr().out.split())


def test_a_group_that_says_nothing_any_more_is_not_told_as_ready(capsys, spec, plan):
    describe._show(DescribedDeployment(running(spec, plan, report(silent_s=240.4)), ()))
    assert "group m/g1/0 was ready; no report for 240 s" in " ".join(capsys.readouterr().out.split())


def test_a_refused_chat_is_shown_with_its_remedy(capsys, spec, plan):
    refusing = report(chat_refusal="HTTP 400: no template", engine="vllm")
    describe._show(DescribedDeployment(running(spec, plan, refusing), ()))
    out = " ".join(capsys.readouterr().out.split())
    assert "answers no chats: HTTP 400: no template. Only /v1/completions serves." in out
    assert "`engine_args`: [--chat-template, FILE]" in out
