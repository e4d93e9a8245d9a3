"""Rungs: their reasons, and which of two leads."""

import re

import pytest
from planning_values import choice

from sparkfleet.knowledge.engines.advisories import advisories_of
from sparkfleet.planner.search.evaluate import Evaluation
from sparkfleet.planner.search.rung_builder import NOTABLE, without_advisory_first
from sparkfleet.planner.types.rung_facts import PublishedRuns


class TestReasons:
    """Reasons for the place of a rung."""

    def test_a_rung_that_promises_more_than_the_choice_says_why_it_is_below(self, sparks, plan, ask):
        """TensorRT-LLM promises more than vLLM, and nobody has published it for models of this shape."""
        spec = ask("stepfun-ai/Step-3.7-Flash-NVFP4", speculation="none")
        first, *rest = plan(sparks(2), spec).deployments[0].groups[0].ladder
        promised = first.prediction.decode_tps_per_request.mid
        more = [rung for rung in rest if rung.prediction.decode_tps_per_request.mid > promised]
        assert more
        most = max(more, key=lambda rung: rung.prediction.decode_tps_per_request.mid)
        assert f"; {most.candidate.how} is predicted faster (" in first.reason
        said = [
            rung
            for rung in rest
            if rung.reason.endswith("predicted faster than the choice, but fewer published measurements")
        ]
        assert said == more

    def test_a_rung_that_a_rule_ranks_lower_names_the_rule(self, sparks, plan, ask):
        """It was "fewer published measurements", which was not the cause."""
        spec = ask("nvidia/Qwen3.8-27B-NVFP4", content="agent", engine="vllm")
        first, *rest = plan(sparks(1), spec).deployments[0].groups[0].ladder
        assert any("DFLASH" in rung.candidate.how for rung in (first, *rest))
        for rung in rest:
            if "DFLASH" in rung.candidate.how and "predicted faster" in rung.reason:
                assert "`sparkfleet explain hybrid-dflash-prefix-cache-empty`" in rung.reason
                break
        else:
            raise AssertionError([rung.reason for rung in rest])

    def test_a_rule_that_costs_more_than_the_evidence_is_the_reason(self, sparks, plan, ask):
        """DFlash-2 has five published measurements, the choice none on two Sparks, and "fewer" was the reason of 3.05×."""
        found = plan(sparks(2), ask("Qwen/Qwen3.8-27B-FP8", content="agent"))
        drafts = next(one for one in found.deployments[0].groups[0].ladder if "DFLASH2" in one.candidate.how)
        assert drafts.published.rows > choice(found).published.rows
        assert drafts.repeated_prefill.off
        assert f"{drafts.candidate.how} is predicted faster" in choice(found).reason
        assert f"`sparkfleet explain {drafts.repeated_prefill.rule}`" in choice(found).reason


def test_the_next_rung_that_is_predicted_faster_is_named_beside_the_fastest(sparks, plan, ask):
    """22 tok/s were chosen and 36 of the same engine were the next rung: only the fastest, another engine, was named."""
    found = plan(sparks(2), ask("Intel/Qwen3.5-397B-A17B-int4-AutoRound"))
    first, second, *rest = found.deployments[0].groups[0].ladder
    fastest = max(rest, key=lambda rung: rung.prediction.decode_tps_per_request.mid)
    assert second.candidate.engine != fastest.candidate.engine
    for rung in (second, fastest):
        assert f"; {rung.candidate.how} is predicted faster ({rung.speed('interactive')}) " in first.reason
    words = r"\(its whole answer is ([\d.]+)× as fast, and would have to be ([\d.]+)× to come first\)"
    gains = re.findall(words, first.reason)
    assert len(gains) == 2
    assert all(1.0 < float(gain) < float(required) for gain, required in gains)


def test_a_rung_behind_a_slower_one_has_the_reason(sparks, plan, ask):
    """97 tok/s, then 74, then 94, without a word."""
    ladder = (
        plan(sparks(1), ask("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"))
        .deployments[0]
        .groups[0]
        .ladder
    )
    for at, rung in enumerate(ladder):
        rate = rung.prediction.decode_tps_per_request.mid
        slower = [
            number
            for number, one in enumerate(ladder[:at], start=1)
            if number > 1 and rate > NOTABLE * one.prediction.decode_tps_per_request.mid
        ]
        assert rung.order.startswith(f"behind rung {slower[0]}: ") if slower else rung.order == ""
    assert "behind rung 2: nobody has published it" in [rung.order for rung in ladder]


def test_the_reason_of_such_a_rung_is_what_ranks_it(sparks, plan, ask):
    """Of two that nobody has published, the one whose engine and method are published less with other models."""
    found = plan(sparks(4, switch=True), ask("nvidia/MiniMax-M3-NVFP4"))
    orders = [rung.order for rung in found.deployments[0].groups[0].ladder if rung.order]
    assert orders
    assert set(orders) <= {f"behind rung {number}: published less" for number in (2, 3, 4)}


@pytest.mark.parametrize("model", ["Qwen/Qwen3.6-27B-FP8", "nvidia/Qwen3.6-27B-NVFP4"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_no_two_rungs_start_the_same_engine(sparks, plan, ask, model, nodes):
    """SGLang 0.5.23 has a beam's draft tokens as a flag in any case, and EAGLE is its NEXTN: rung 2 was rung 1 once more."""
    ladder = plan(sparks(nodes, switch=nodes > 2), ask(model)).deployments[0].groups[0].ladder
    shape = ladder[0].candidate.shape
    on_all = [rung.candidate for rung in ladder if rung.candidate.shape == shape]
    assert any(one.speculation.topk > 1 for one in on_all)
    started = [
        (one.engine, one.image, one.speculation.model_copy(update={"beam_tokens": None})) for one in on_all
    ]
    assert len(started) == len(set(started))


class TestReasonsOfOtherSplits:
    """The split is the reason only if engine and method are those of the choice."""

    def test_all_reduces_are_not_the_reason_for_what_a_method_lacks(self, sparks, plan, ask):
        """Two Sparks without drafts were slower than one with them "because all-reduces cost more than they save"."""
        found = plan(sparks(2), ask("nvidia/Qwen3.6-35B-A3B-NVFP4"))
        chosen = choice(found).candidate
        assert (chosen.shape.tp, chosen.speculation.method) == (1, "mtp")
        rejected = found.deployments[0].rejected
        plain = [one for one in rejected if one.methods == ("none",) and one.what.startswith("TP=2 · vLLM")]
        assert plain
        assert not any("all-reduces" in one.reason for one in plain)

    def test_all_reduces_are_the_reason_with_the_same_method(self, sparks, plan, ask):
        spec = ask("Qwen/Qwen3-0.6B", engine="vllm", speculation="none")
        rejected = plan(sparks(2, latency_us=300), spec).deployments[0].rejected
        reasons = [one.reason for one in rejected if one.what.startswith("TP=2 ·")]
        assert any("all-reduces a step over 300 µs links cost more" in reason for reason in reasons)

    def test_ep_is_held_against_the_same_without_it(self, sparks, plan, ask):
        """ "35.7 tok/s against 22.2: no speed-up" contradicted itself."""
        found = plan(sparks(2), ask("Intel/Qwen3.5-397B-A17B-int4-AutoRound"))
        tps = choice(found).prediction.decode_tps_per_request.mid
        experts = [one for one in found.deployments[0].rejected if "EP reads as many bytes" in one.reason]
        faster = [one for one in experts if one.tps > 1.1 * tps]
        assert faster
        assert all(one.reason.endswith(": no faster than the same without EP") for one in faster)
        assert any(one.reason.endswith(": no speed-up") for one in experts)


class TestAdvisories:
    """A release with a published security advisory leads only if it is faster by more than two boots differ by."""

    @pytest.mark.parametrize("objective", ["interactive", "throughput"])
    def test_the_release_without_one_leads_if_the_two_are_about_equal(self, sparks, plan, ask, objective):
        spec = ask("meta-llama/Llama-3.1-8B-Instruct-FP8", objective=objective)
        first, second, *_ = plan(sparks(1), spec).deployments[0].groups[0].ladder
        assert first.worth < second.worth < 1.15 * first.worth
        assert first.candidate.engine_version
        assert not advisories_of(first.candidate.engine, first.candidate.engine_version)
        assert advisories_of(second.candidate.engine, second.candidate.engine_version)
        assert f"{second.candidate.how} " in first.reason
        assert "`sparkfleet explain security-advisory`" in first.reason
        assert "`sparkfleet explain security-advisory`" in second.reason

    def test_one_that_is_clearly_faster_leads(self, with_advisory, without):
        assert _order(with_advisory, without._replace(worth=with_advisory.worth / 1.14)) == [1, 0]
        assert _order(with_advisory, without._replace(worth=with_advisory.worth / 1.16)) == [0, 1]

    def test_a_release_that_nobody_ran_does_not_lead(self, with_advisory, without):
        assert _order(with_advisory, _with_rung(without, published=PublishedRuns())) == [0, 1]

    def test_a_version_that_is_not_known_does_not_lead(self, with_advisory, without):
        """No advisory is known of it because nothing is."""
        nameless = without.rung.candidate.model_copy(update={"engine_version": ""})
        assert _order(with_advisory, _with_rung(without, candidate=nameless)) == [0, 1]

    def test_drafts_that_may_not_lead_do_not(self, with_advisory, without):
        assert without_advisory_first([with_advisory, without], lambda _: False)[0] is with_advisory

    @pytest.fixture
    def with_advisory(self, sparks, plan, ask):
        spec = ask("meta-llama/Llama-3.1-8B-Instruct-FP8", engine="sglang")
        rung = choice(plan(sparks(1), spec))
        assert advisories_of(rung.candidate.engine, rung.candidate.engine_version)
        return Evaluation(None, rung, rung.worth, None)

    @pytest.fixture
    def without(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask("meta-llama/Llama-3.1-8B-Instruct-FP8", engine="vllm")))
        return Evaluation(None, rung, rung.worth, None)


def _with_rung(judged, **update):
    return judged._replace(rung=judged.rung.model_copy(update=update))


def _order(*ladder):
    """The places that the rungs had, in their new order."""
    return [ladder.index(one) for one in without_advisory_first(list(ladder), lambda _: True)]
