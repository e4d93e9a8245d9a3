"""Wrong results and repeated prefills in the rank: what they cost, and what a plan shows of them."""

from __future__ import annotations

import pytest
from planning_values import choice, ladder

from sparkfleet.perf.workload import CHAT, SESSION, conversation_of
from sparkfleet.planner.report.explain.plan import explain_plan
from sparkfleet.planner.report.explain.prefix_lines import prefix_words
from sparkfleet.planner.search.risk import UNCURED

HYBRID = "nvidia/Qwen3.8-27B-NVFP4"
MOE = "Qwen/Qwen3.6-35B-A3B"


def words(found) -> str:
    return " ".join(" ".join(explain_plan(found.deployments[0])).split())


class TestWrongResults:
    """A rule of severity garbage without a published cure."""

    def test_a_release_without_it_is_chosen(self, sparks, plan, ask):
        """vLLM 0.26.0 answers "2+2=" with 5 over two Sparks, and was the choice for 0.4 % of speed."""
        found = plan(sparks(2), ask(MOE))
        rungs = [rung for rung in ladder(found) if rung.candidate.shape.ranks == 2]
        assert rungs
        assert not any(rung.uncured for rung in rungs)
        passed = [one for one in found.deployments[0].rejected if one.rule == "tp2-gdn-wrong-output"]
        assert passed
        assert all("vLLM 0.26.0" in one.what and "another release" in one.reason for one in passed)

    def test_if_nothing_else_may_be_taken_it_is_with_the_reason(self, sparks, plan, ask):
        spec = ask(MOE, image="vllm/vllm-openai:v0.26.0", parallel={"tp": 2})
        found = plan(sparks(2), spec)
        rung = choice(found)
        assert rung.uncured == ("tp2-gdn-wrong-output",)
        assert "--enforce-eager" in rung.candidate.engine_args
        assert "answers wrongly and then dies" in words(found)
        assert "nobody has published that --enforce-eager cures it" in words(found)

    def test_weights_that_only_warn_are_worth_as_much_less(self, sparks, plan, ask):
        wrong, sound = (
            choice(plan(sparks(2), ask(f"{owner}/GLM-5.3-Flash-NVFP4")))
            for owner in ("LibertAIDAI", "RedHatAI")
        )
        assert wrong.uncured == ("glm53-libertaidai-tokens",)
        assert sound.uncured == ()
        speeds = [one.prediction.decode_tps_per_request.mid for one in (wrong, sound)]
        assert speeds[0] > speeds[1]
        assert wrong.worth < 1.1 * UNCURED * sound.worth


class TestConversations:
    """A prefix cache that is off, or finds nothing."""

    def test_the_plan_has_the_time_of_a_turn(self, sparks, plan, ask):
        found = plan(sparks(1), ask(HYBRID))
        lost = choice(found).repeated_prefill
        assert (lost.rule, lost.whole, lost.off) == ("hybrid-dflash-prefix-cache-empty", True, False)
        assert (lost.tokens, lost.follow_ups) == (CHAT.earlier, CHAT.follow_ups)
        assert lost.ttft_ms > 3 * lost.cached_ttft_ms
        turn = f"after 8,192 tokens its first word takes {lost.ttft_ms / 1000:.1f} s instead of"
        assert f"cache finds nothing (`sparkfleet explain {lost.rule}`)" in words(found)
        assert turn in words(found)
        assert "15 % of requests are ranked so, with `content: agent` all" in words(found)

    def test_what_switches_it_off_is_named(self, sparks, plan, ask):
        """DSpark of a hybrid on 0.31 needs it off, and the plan named the rule alone."""
        rung = choice(plan(sparks(1), ask("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4")))
        assert "--no-enable-prefix-caching" in rung.candidate.engine_args
        assert rung.repeated_prefill.off
        (line,) = prefix_words(rung)
        assert line.startswith("cache is off (`sparkfleet explain hybrid-drafter-prefix-cache-wrong-state`)")

    @pytest.mark.parametrize(
        ("engine", "flag"), [("vllm", "--no-enable-prefix-caching"), ("sglang", "--disable-radix-cache")]
    )
    def test_the_deployments_own_flag(self, sparks, plan, ask, engine, flag):
        rung = choice(plan(sparks(1), ask("openai/gpt-oss-120b", engine=engine, engine_args=[flag])))
        assert (rung.repeated_prefill.rule, rung.repeated_prefill.off) == ("prefix-cache-off", True)
        other = choice(plan(sparks(1), ask("openai/gpt-oss-120b", engine=engine)))
        assert other.repeated_prefill is None
        assert prefix_words(other) == ()
        assert 0.8 * other.worth < rung.worth < other.worth

    def test_a_few_percent_of_speed_do_not_pay_for_it(self, sparks, plan, ask):
        """Of one evidence; the published rates decide by more (decision 173)."""
        first, *rest = ladder(
            plan(sparks(1), ask("nvidia/Qwen3.6-35B-A3B-NVFP4", objective="throughput", concurrency=4))
        )
        (drafts,) = [rung for rung in rest if rung.candidate.speculation.method == "dflash"]
        assert first.candidate.speculation.method == "mtp"
        assert drafts.prediction.decode_tps_aggregate.mid > first.prediction.decode_tps_aggregate.mid
        assert drafts.repeated_prefill.whole

    def test_an_agent_has_longer_ones_and_a_short_context_shorter_ones(self, sparks, plan, ask):
        pinned = {"engine": "vllm", "speculation": "dflash2", "image": "vllm/vllm-openai:v0.28.0"}
        chat, agent, short, none = (
            choice(plan(sparks(1), ask(HYBRID, **pinned, **fields))).repeated_prefill
            for fields in ({}, {"content": "agent"}, {"context": 4096}, {"context": 2048})
        )
        assert (agent.tokens, agent.follow_ups) == (SESSION.earlier, 1.0)
        assert agent.ttft_ms > chat.ttft_ms
        assert short.tokens == 4096 - 2048 - 256
        assert none is None

    def test_a_part_of_it_is_counted_too(self, sparks, plan, ask):
        spec = ask(HYBRID, speculation="mtp", image="vllm/vllm-openai:v0.28.0")
        rung = choice(plan(sparks(1), spec))
        assert (rung.repeated_prefill.tokens, rung.repeated_prefill.whole) == (2144, False)
        assert prefix_words(rung) == (), "it has a warning"
        assert any("hybrid-mtp-prefix-cache-unit" in note for note in rung.notes)


def test_edits_are_sessions():
    assert conversation_of("edits") == conversation_of("agent") == SESSION
    assert conversation_of("mixed") == conversation_of("json") == CHAT
