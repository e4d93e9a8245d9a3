"""Between fewer and more nodes: idle ones cost nothing, and evidence decides between what is close."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.published import evidence as known
from sparkfleet.knowledge.published import figures
from sparkfleet.knowledge.published.evidence import EvidenceIndex, PublishedEvidence
from sparkfleet.knowledge.published.figures import PublishedFigure
from sparkfleet.perf.local_measurements import LocalMeasurement, Point
from sparkfleet.perf.prediction import Split
from sparkfleet.perf.workload import Workload
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.search import objective
from sparkfleet.planner.search.objective import required_gain
from sparkfleet.planner.search.spread import alternative_line
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import three_digits

FP8 = "Qwen/Qwen3.6-27B-FP8"
MOE = "Qwen/Qwen3.6-35B-A3B-FP8"
DENSE = "nvidia/Llama-3.3-70B-Instruct-FP4"
CODER = "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"
"""A second Spark is predicted to answer 1.2 times as fast."""
DRAFTED = "nvidia/Qwen3.8-27B-NVFP4"
MODELS = (FP8, MOE, DENSE, "openai/gpt-oss-120b", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")


def first(plan):
    return plan.deployments[0].groups[0].choice


def answer_s(rung) -> float:
    """Seconds of the answer that `interactive` is about."""
    return rung.prediction.ttft_ms.mid / 1000 + 256 / rung.prediction.decode_tps_per_request.mid


@pytest.fixture
def published(monkeypatch):
    """published(runs…): nothing else was."""

    def use(*runs: PublishedEvidence) -> None:
        index = EvidenceIndex(runs)
        monkeypatch.setattr(objective, "evidence", lambda: index)

    return use


def run(method: str, nodes: int, engine: str = "vllm", **given: object) -> PublishedEvidence:
    fields = {
        "model": "qwen3.6-27b",
        "family": "dense-hybrid-5120x64",
        "engine": engine,
        "method": method,
        "format": "fp8",
        "nodes": nodes,
        "rows": 4,
        "sources": ("a/b", "c/d"),
        "alone": 10.0,
        "busy": 2,
    }
    return PublishedEvidence.model_validate(fields | given)


@pytest.fixture
def rates(monkeypatch):
    """rates(figures…): no others were published."""

    def use(*found: PublishedFigure) -> None:
        monkeypatch.setattr(figures, "figures", lambda: figures.by_setup(found))

    return use


def figure(nodes: int, tps: float, *, source: str, checkpoint: str = FP8) -> PublishedFigure:
    return PublishedFigure(
        model="qwen3.6-27b",
        engine="vllm",
        method="none",
        format="fp8",
        nodes=nodes,
        source=source,
        checkpoint=checkpoint,
        content="mixed",
        requests=1,
        rows=1,
        tps=tps,
        expected=tps,
    )


class TestIdleNodes:
    def test_an_idle_spark_is_taken_if_it_was_published_and_is_faster(self, sparks, plan, ask, published):
        published(run("none", 1), run("none", 2))
        spec = ask(FP8, engine="vllm", speculation="none")
        one, two = plan(sparks(1), spec), plan(sparks(2), spec)
        assert first(two).candidate.shape.tp == 2
        assert answer_s(first(one)) / answer_s(first(two)) >= required_gain(2, 1)
        assert "one Spark: " in first(two).reason
        assert "`parallel: {tp: 1}`" in first(two).reason

    def test_it_is_kept_if_another_deployment_wants_it(self, sparks, plan, ask, published):
        published(run("none", 1), run("none", 2))
        spec = ask(FP8, engine="vllm", speculation="none")
        found = plan(sparks(2), spec, ask(MOE, name="other"))
        mine = found.of("m").groups[0].choice
        assert mine.candidate.shape.tp == 1
        assert "two Sparks: " in mine.reason
        assert "`parallel: {tp: 2}` (the other nodes are kept for the other deployments)" in mine.reason

    def test_it_is_kept_for_another_variant(self, sparks, plan):
        """The only deployment read that the node was kept "for the other deployments"."""
        variants = [{"model": FP8}, {"model": MOE}]
        spec = Deployment.model_validate({"name": "m", "variants": variants}, strict=False)
        found = plan(sparks(2), spec)
        for group in found.of("m").groups:
            assert (
                "`parallel: {tp: 2}` (the other nodes are kept for the other variants)" in group.choice.reason
            )
        assert any(one.reason.endswith("kept for the other variants") for one in found.of("m").rejected)

    def test_nobody_has_published_two_and_the_alternative_is_told(self, sparks, plan, ask, published):
        published(run("none", 1, model="qwen3-coder-30b-a3b", family="moe-2048x48x128"))
        found = first(plan(sparks(2), ask(CODER, engine="vllm", speculation="none")))
        assert found.candidate.shape.tp == 1
        assert "`parallel: {tp: 2}` (" in found.reason
        said = re.search(
            r"\(the whole answer is ([\d.]+)× as fast, ([\d.]+)× would be required: (.*)\)", found.reason
        )
        assert said is not None
        assert required_gain(2, 1) < float(said[1]) < float(said[2])
        assert said[3] == "no published measurements on two Sparks, 4 on one Spark"

    def test_the_number_of_measurements_is_the_reason_even_if_their_rate_is_above_the_prediction(
        self, sparks, plan, ask, published
    ):
        published(run("none", 1, model="qwen3-coder-30b-a3b", family="moe-2048x48x128", off_alone=0.8))
        found = first(plan(sparks(2), ask(CODER, engine="vllm", speculation="none")))
        assert found.candidate.shape.tp == 1
        assert "no published measurements on two Sparks" in found.reason

    def test_measurements_on_one_spark_count_for_two_a_step_less(self, sparks, plan, ask, published):
        """Qwen3-8B took one of two Sparks, although two are predicted to answer 1.7 times as fast, and four of four."""
        published(run("none", 1, model="qwen3-8b", family="dense-4096x36", format="bf16"))
        found = [first(plan(sparks(n, switch=n > 2), ask("Qwen/Qwen3-8B", engine="vllm"))) for n in (1, 2, 4)]
        assert [one.candidate.shape.tp for one in found] == [1, 2, 4]

    def test_the_engine_and_method_of_fewer_sparks_are_weighed_on_more(self, sparks, plan, ask):
        """SGLang, predicted slower, was held against vLLM on four Sparks, and two of them were taken."""
        found = first(plan(sparks(4, switch=True), ask(DRAFTED)))
        assert (found.candidate.shape.tp, found.candidate.engine) == (4, "vllm")
        assert found.candidate.speculation.method == "dflash2"

    @pytest.mark.parametrize(
        ("model", "nodes"),
        [("nvidia/Gemma-4-31B-IT-NVFP4", 2), ("nvidia/Gemma-4-31B-IT-NVFP4", 4), (DRAFTED, 4), (FP8, 2)],
    )
    def test_a_split_that_is_set_has_the_choice_that_it_has_unset(self, sparks, plan, ask, model, nodes):
        """`parallel: {tp: 2}` gave Gemma 4 31B drafts at 23.7 tok/s, and the plan without it those at 30.1."""
        fleet = sparks(nodes, switch=nodes > 2)
        free = first(plan(fleet, ask(model)))
        assert free.candidate.shape.tp == nodes
        pinned = first(plan(fleet, ask(model, parallel={"tp": nodes})))
        assert (pinned.candidate.how, pinned.worth) == (free.candidate.how, free.worth)

    def test_the_line_of_another_number_of_nodes_is_what_it_then_gives(self, sparks, plan, ask):
        fleet = sparks(4, switch=True)
        reason = first(plan(fleet, ask("nvidia/Gemma-4-31B-IT-NVFP4"))).reason
        pinned = first(plan(fleet, ask("nvidia/Gemma-4-31B-IT-NVFP4", parallel={"tp": 2})))
        tps = pinned.prediction.decode_tps_per_request.mid
        assert f"two Sparks: {three_digits(tps)} tok/s for one user" in reason

    def test_rates_of_one_source_on_one_spark_are_nothing_against_two(self, sparks, plan, ask, published):
        """Qwen3.8-27B stayed on one of eight Sparks, because a source's texts were fast there."""
        published(run("none", 1, off_alone=0.4), run("none", 2, off_alone=-0.2, sources=("x/y", "z/w")))
        found = first(plan(sparks(2), ask(FP8, engine="vllm", speculation="none")))
        assert found.candidate.shape.tp == 2

    def test_rates_of_another_method_on_two_are_nothing_against_it_either(self, sparks, plan, ask, published):
        """One source's SGLang without drafts was slow on two, which was held against vLLM with MTP on two."""
        measured = (
            run("mtp", 1),
            run("mtp", 4, off_alone=None, alone=None),
            run("mtp", 1, "sglang", off_alone=0.1),
        )
        published(*measured, run("none", 2, "sglang", off_alone=-0.47, sources=("x/y",)))
        found = first(plan(sparks(2), ask(FP8, speculation="mtp", engine="vllm")))
        assert found.candidate.shape.tp == 2

    def test_a_source_that_ran_both_counts(self, sparks, plan, ask, published):
        published(run("none", 1, off_alone=0.4), run("none", 2, off_alone=-0.2))
        found = first(plan(sparks(2), ask(FP8, engine="vllm", speculation="none")))
        assert found.candidate.shape.tp == 1
        assert "× would be required: published rates favour one Spark)" in found.reason

    def test_a_published_rate_is_beside_the_predicted_one(self, sparks, plan, ask, published, rates):
        """16 tok/s were predicted of one Spark, 20.6 published, and the plan had the first only."""
        published(run("none", 1), run("none", 2))
        rates(figure(1, 9.5, source="a/b"), figure(2, 10.0, source="c/d"))
        found = first(plan(sparks(2), ask(FP8, engine="vllm", speculation="none")))
        assert re.search(r"one Spark: [\d.]+ tok/s for one user \(published: 9.5\), 0\.\d+×", found.reason)
        assert found.published.exactly == 10.0
        assert "published on both" not in found.reason

    def test_a_source_that_ran_both_is_named_with_its_rates(self, sparks, plan, ask, published, rates):
        published(run("none", 1), run("none", 2))
        rates(figure(1, 9.0, source="a/b"), figure(2, 14.4, source="a/b"), figure(2, 8.0, source="c/d"))
        found = first(plan(sparks(2), ask(FP8, engine="vllm", speculation="none")))
        assert (
            f"; published on both: 9 on one Spark and 14.4 on two Sparks, 1.6×, of {FP8} (a/b)"
        ) in found.reason

    @pytest.mark.parametrize(
        ("checkpoint", "words"),
        [
            (FP8, "published rates say otherwise: 30 on one Spark, 10 on two Sparks"),
            (
                "RedHatAI/Qwen3.6-27B-FP8-dynamic",
                "the rates published apart, 30 on one Spark and 10 on two Sparks, are of two checkpoints and do not compare",
            ),
        ],
    )
    def test_published_rates_that_say_the_opposite_are_not_left_beside_the_claim(
        self, sparks, plan, ask, published, rates, checkpoint, words
    ):
        """Two Sparks were "58 tok/s (published: 46.1)", one "38.9 (published: 52.8), 0.67×", of two checkpoints."""
        published(run("none", 1), run("none", 2))
        rates(figure(1, 30.0, source="a/b", checkpoint=checkpoint), figure(2, 10.0, source="c/d"))
        found = first(plan(sparks(2), ask(FP8, engine="vllm", speculation="none")))
        assert found.candidate.shape.tp == 2
        assert found.reason.endswith(words)
        assert (f"(published: 30 of {checkpoint})" in found.reason) is (checkpoint != FP8)

    def test_rates_of_builds_in_other_bits_are_not(self, sparks, plan, ask):
        """gpt-oss-120b: 58 tok/s are of a build that stores attention and head in MXFP4."""
        found = first(plan(sparks(1), ask("openai/gpt-oss-120b")))
        assert found.published.same
        assert found.published.exactly is None

    def test_fewer_that_are_slower_than_still_fewer_are_not_listed(self, sparks, plan, ask):
        """Three in a pipeline, 7.6 tok/s, were listed between two with 42 and the choice."""
        found = first(plan(sparks(4, switch=True), ask(DRAFTED)))
        assert "two Sparks: " in found.reason
        assert "3 Sparks: " not in found.reason

    def test_the_line_of_an_alternative(self):
        assert (
            alternative_line(Split(2), 24.7, 16.5)
            == "two Sparks: 24.7 tok/s for one user, 1.5×: `parallel: {tp: 2}`"
        )
        assert (
            alternative_line(Split(1, 4), 5.0, 10.0)
            == "4 Sparks: 5 tok/s for one user, 0.5×: `parallel: {pp: 4}`"
        )

    def test_throughput_takes_what_yields_more_for_all(self, sparks, plan, ask):
        found = plan(sparks(2), ask("Qwen/Qwen3-30B-A3B-FP8", objective="throughput", concurrency=32))
        assert len(found.deployments[0].groups) == 2, "two replicas"
        assert {len(group.choice.candidate.shape.nodes) for group in found.deployments[0].groups} == {1}

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        model=st.sampled_from(MODELS),
        nodes=st.integers(1, 4),
        concurrency=st.sampled_from([None, 1, 8]),
        wanted=st.sampled_from(["interactive", "throughput"]),
    )
    def test_an_idle_node_never_makes_a_plan_slower(
        self, sparks, plan, ask, model, nodes, concurrency, wanted
    ):
        fields = {"objective": wanted} | ({"concurrency": concurrency} if concurrency else {})
        before, after = (plan(sparks(n, switch=True), ask(model, **fields)) for n in (nodes, nodes + 1))
        if before.refused:
            return
        assert not after.refused
        old, new = first(before), first(after)
        if wanted == "interactive":
            assert answer_s(new) <= answer_s(old) * 1.001
        else:
            assert new.worth >= old.worth * 0.999


class TestEvidence:
    def test_the_field_reports_own_configuration_does_not_lose_to_what_nobody_published(
        self, sparks, plan, ask
    ):
        found = first(plan(sparks(1), ask(FP8)))
        assert (found.candidate.engine, found.candidate.speculation.method) == ("sglang", "nextn")
        assert found.published.same
        assert "field report 000" in found.published.sources

    def test_a_choice_that_nobody_has_published_says_so(self, sparks, plan, ask, published):
        published(run("none", 1, model="other", family="moe-1"))
        found = first(plan(sparks(1), ask(FP8, engine="vllm", speculation="none")))
        assert found.published.rows == 0
        assert any(note.startswith("nobody has published this: vLLM without drafts") for note in found.notes)

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        runs=st.lists(
            st.builds(
                run,
                st.sampled_from(["none", "mtp", "dflash"]),
                st.sampled_from([1, 2]),
                st.sampled_from(["vllm", "sglang"]),
            ),
            max_size=3,
        )
    )
    def test_more_evidence_for_a_choice_never_makes_it_lose(self, sparks, plan, ask, published, runs):
        published(*runs)
        chosen = first(plan(sparks(1), ask(FP8))).candidate
        method = {"nextn": "mtp"}.get(chosen.speculation.method, chosen.speculation.method)
        published(*runs, run(method, 1, chosen.engine, sources=("x/y",)))
        again = first(plan(sparks(1), ask(FP8))).candidate
        assert (again.engine, again.speculation.method) == (chosen.engine, chosen.speculation.method)

    def test_the_users_own_measurement_counts_as_evidence(self, sparks, published):
        published(run("none", 1, "sglang"))
        spec = Deployment(name="m", model=FP8)
        fleet = sparks(1)
        point = Point(workload=Workload(prompt=2048, generate=256), decode_tps_per_request=60.0)
        own = LocalMeasurement(model=FP8, engine="vllm", method="mtp", k=3, point=point)
        found = plan_fleet([spec], fleet, {FP8: known_checkpoint(FP8)}, measurements=[own])
        assert (first(found).candidate.engine, first(found).candidate.speculation.method) == ("vllm", "mtp")


class TestLookups:
    """Drafts that are looked up in the text (NGRAM) lead only if it repeats."""

    def test_they_do_not_lead_over_mixed_text(self, sparks, plan, ask, published):
        published(run("ngram", 1, alone=99.0, off_alone=2.0, sources=("a", "b", "c")))
        found = plan(sparks(1), ask(FP8, engine="vllm")).deployments[0]
        assert found.groups[0].choice.candidate.speculation.method != "ngram"

    @pytest.mark.parametrize("content", ["agent", "edits", "code"])
    def test_they_may_where_it_repeats(self, sparks, plan, ask, published, content):
        published(run("ngram", 1, alone=99.0, off_alone=2.0, sources=("a", "b", "c")))
        spec = ask("nvidia/Llama-3.3-70B-Instruct-FP4", engine="vllm", content=content)
        methods = [
            r.candidate.speculation.method for r in plan(sparks(1), spec).deployments[0].groups[0].ladder
        ]
        assert "ngram" in methods

    def test_the_reason_says_what_to_set(self, sparks, plan, ask):
        found = plan(sparks(1), ask(DENSE)).deployments[0]
        told = [one.reason for one in found.rejected if one.what == "NGRAM as first choice"]
        assert told
        assert "`content: agent`" in told[0]

    def test_one_that_is_asked_for_is_obeyed(self, sparks, plan, ask):
        found = first(plan(sparks(1), ask(FP8, speculation="ngram")))
        assert found.candidate.speculation.method == "ngram"


def test_the_packaged_evidence_is_what_the_planner_reads():
    assert objective.evidence is known.evidence
