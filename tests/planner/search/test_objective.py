"""Objectives: what a plan maximises."""

import pytest
from planning_values import choice

FP8 = "Qwen/Qwen3.6-27B-FP8"

SMALL = "Qwen/Qwen3-30B-A3B-FP8"

LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"

SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"


class TestThroughput:
    """The choice for many clients is the highest total of what fits, at the concurrency that fits."""

    @pytest.mark.parametrize(
        "model",
        [SUPER, "google/gemma-4-31B-it", "Qwen/Qwen3-32B", "nvidia/Llama-3.3-70B-Instruct-FP4"],
    )
    def test_the_choice_has_the_highest_total_of_what_fits(self, sparks, plan, ask, model):
        def total_of(rung):
            return rung.prediction.decode_tps_aggregate.mid

        first, *rest = plan(sparks(1), ask(model, objective="throughput")).deployments[0].groups[0].ladder
        assert first.candidate.concurrency > 1
        assert first.worth == max(rung.worth for rung in (first, *rest))
        more = [rung for rung in rest if total_of(rung) > 1.005 * total_of(first)]
        for rung in more:
            assert "; predicted faster than the choice, but fewer published measurements" in rung.reason
        if more:
            most = max(more, key=total_of)
            speed = f"{total_of(most):.3g} tok/s shared by {most.candidate.concurrency}"
            assert f"; {most.candidate.how} is predicted faster ({speed}) but ranked lower: " in first.reason

    def test_a_rung_that_promises_more_together_is_among_them(self, sparks, plan, ask):
        (made,) = plan(
            sparks(1), ask("nvidia/Llama-3.3-70B-Instruct-FP4", objective="throughput")
        ).deployments
        assert "is predicted faster" in made.groups[0].choice.reason

    @pytest.mark.parametrize("model", ["nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/Qwen3.6-27B-NVFP4"])
    def test_no_rung_is_called_faster_that_has_the_same_rate(self, sparks, plan, ask, model):
        ladder = plan(sparks(1), ask(model)).deployments[0].groups[0].ladder
        speed = ladder[0].speed("interactive")
        assert f"is predicted faster ({speed})" not in ladder[0].reason
        same = [rung for rung in ladder[1:] if rung.speed("interactive") == speed]
        assert not [rung for rung in same if "predicted faster" in rung.reason]

    def test_a_rung_whose_whole_answer_is_no_faster_is_not_called_so(self, sparks, plan, ask):
        """Its first word is late: the number of measurements was given as the reason for its rank."""
        first, *rest = plan(sparks(2), ask(FP8)).deployments[0].groups[0].ladder
        assert max(rung.prediction.decode_tps_per_request.mid for rung in rest) > (
            first.prediction.decode_tps_per_request.mid
        )
        assert not [rung for rung in (first, *rest) if "predicted faster" in rung.reason]

    def test_of_two_that_nobody_ran_on_two_the_reason_is_what_was_run_on_one(self, sparks, plan, ask):
        found = choice(plan(sparks(2), ask("nvidia/Qwen3.6-27B-NVFP4")))
        assert found.published.rows == 0
        assert "ranked lower: fewer published measurements of it on fewer Sparks" in found.reason

    def test_requests_are_fewer_by_a_quarter_before_they_are_halved(self, sparks, plan, ask):
        """With three drafts a step the KV cache of 16 is tight, and that of 12 is not: of 8 it was slower than no drafts."""
        found = choice(plan(sparks(1), ask(SUPER, objective="throughput")))
        assert (str(found.candidate.speculation), found.candidate.concurrency) == ("MTP k=3", 12)
        bare = choice(plan(sparks(1), ask(SUPER, objective="throughput", speculation="none")))
        assert found.prediction.decode_tps_aggregate.mid > bare.prediction.decode_tps_aggregate.mid


class TestObjectives:
    def test_throughput_takes_replicas_where_they_yield_more_than_one_wide_group(self, sparks, plan, ask):
        found = plan(sparks(2), ask(SMALL, objective="throughput", concurrency=64)).deployments[0]
        assert len(found.groups) == 2
        assert all(group.choice.candidate.shape.ranks == 1 for group in found.groups)
        assert {group.choice.candidate.shape.nodes for group in found.groups} == {("spark1",), ("spark2",)}

    def test_requests_are_distributed_evenly_so_no_node_is_left_idle(self, sparks, plan, ask):
        """Seven groups have three requests or two, not three each: eight with two, or four over two Sparks, are faster."""
        asked = ask("openai/gpt-oss-120b", objective="throughput", concurrency=16)
        groups = plan(sparks(8, switch=True), asked).deployments[0].groups
        assert sum(len(group.choice.candidate.shape.nodes) for group in groups) == 8

    def test_an_open_load_follows_the_nodes(self, sparks, plan, ask):
        """Each of four Sparks does what one alone would; a group over two has the requests of both."""
        one, four = (
            plan(sparks(count, switch=True), ask(FP8, objective="throughput")).deployments[0].groups
            for count in (1, 4)
        )
        assert len(four) == 4
        assert {group.choice.candidate.how for group in four} == {one[0].choice.candidate.how}
        wide = choice(plan(sparks(2), ask("stepfun-ai/Step-3.7-Flash-NVFP4", objective="throughput")))
        assert (wide.candidate.shape.tp, wide.candidate.concurrency) == (2, 32)
        assert "ranked for 16 requests at once per Spark: `concurrency: N` for N in all" in wide.reason

    def test_a_load_that_is_set_is_that_of_all_nodes_together(self, sparks, plan, ask):
        found = plan(sparks(4, switch=True), ask(FP8, objective="throughput", concurrency=16)).deployments[0]
        assert [group.choice.candidate.shape.tp for group in found.groups] == [4]
        assert "requests at once" not in found.groups[0].choice.reason
        assert any("for 16 requests together against" in one.reason for one in found.rejected)

    def test_context_takes_the_longest_that_fits(self, sparks, plan, ask):
        rung = choice(plan(sparks(1), ask(FP8, objective="context")))
        assert rung.candidate.context == 262_144

    @pytest.mark.parametrize(
        "model", ["RadixArk/Qwen3.8-27B-NVFP4", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", FP8]
    )
    def test_of_equal_contexts_the_fastest_is_taken_as_for_one_request(self, sparks, plan, ask, model):
        """The number of publications weighed the context: plain decoding at 11.4 tok/s came before drafts at 38.9."""
        longest = choice(plan(sparks(1), ask(model, objective="context"))).candidate
        sizes = {"context": longest.context, "concurrency": longest.concurrency}
        assert choice(plan(sparks(1), ask(model, **sizes))).candidate.how == longest.how

    def test_a_faster_one_with_less_context_is_named(self, sparks, plan, ask):
        ladder = (
            plan(sparks(2), ask("deepseek-ai/DeepSeek-V4-Flash-0731", objective="context"))
            .deployments[0]
            .groups[0]
            .ladder
        )
        held = {rung.candidate.how: rung.candidate.context for rung in ladder}
        shorter = [how for how in held if held[how] < ladder[0].candidate.context]
        assert [how for how in shorter if f"; {how} is faster (" in ladder[0].reason], ladder[0].reason
        assert ladder[0].reason.endswith(f"tok/s) and holds {held[shorter[0]]}")

    def test_interactive_makes_one_group(self, sparks, plan, ask):
        assert len(plan(sparks(8, switch=True), ask(SMALL)).deployments[0].groups) == 1

    def test_asked_for_replicas(self, sparks, plan, ask):
        found = plan(sparks(8, switch=True), ask(SMALL, replicas=3)).deployments[0]
        assert len({group.choice.candidate.shape.nodes for group in found.groups}) == 3

    def test_more_replicas_than_there_is_room(self, sparks, plan, ask):
        found = plan(sparks(2), ask(LARGE, replicas=2), ask(SMALL, "small"))
        refused = found.refused[0]
        assert any("replica 2" in one.what for one in refused.rejected)
        assert refused.nearest == ("fits with `replicas: 1`", "fits on two linked nodes per replica")
        assert found.of("small"), "what was not placed takes no room"
        assert all(name == "small" for node in found.nodes for name, _ in node.placed)
