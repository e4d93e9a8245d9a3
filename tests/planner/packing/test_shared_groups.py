"""Replicas are sized for their share of `concurrency`, and what runs is not started again for another share."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.report.carry_over import carried_over
from sparkfleet.planner.report.diff import planned_groups

FP8 = "Qwen/Qwen3.6-27B-FP8"
GPT = "openai/gpt-oss-120b"


def sizes(deployment):
    return [group.choice.candidate.concurrency for group in deployment.groups]


def nodes(deployment):
    return [node for group in deployment.groups for node in group.choice.candidate.shape.nodes]


def kept(before, after):
    return sum(member is not None for member in carried_over(after, planned_groups(before)).kept)


def planned(plan, fleet, spec, before=None):
    (made,) = plan(fleet, spec, running={spec.name: before} if before else None).deployments
    return made


class TestShares:
    def test_each_replica_is_sized_for_its_share(self, sparks, plan, ask):
        """For all 32 at once, a Spark held them only with a KV cache of 8 bits and half of the context."""
        fleet = sparks(4, switch=True)
        one = planned(plan, fleet, ask(FP8, replicas=4, concurrency=8 * 4))
        assert sizes(one) == [8] * 4
        choice = one.groups[0].choice
        assert (choice.candidate.context, choice.candidate.kv_dtype) == (32_768, "auto")
        assert choice.prediction.concurrency == 8
        alone = planned(plan, sparks(1), ask(FP8, concurrency=8))
        assert (
            choice.prediction.memory_bytes_per_rank == alone.groups[0].choice.prediction.memory_bytes_per_rank
        )

    def test_a_number_of_replicas_that_the_planner_chooses_shares_too(self, sparks, plan, ask):
        one = planned(plan, sparks(2), ask(FP8, objective="throughput", concurrency=32))
        assert sizes(one) == [16, 16]
        assert {group.shared_concurrency for group in one.groups} == {32}

    def test_fewer_groups_than_nodes_have_larger_shares(self, sparks, plan, ask, spark):
        """Two of four Sparks are full: the groups on the others hold all requests."""
        fleet = sparks(4, switch=True)
        full = tuple(spark(f"spark{number}", available=20_000_000_000) for number in (3, 4))
        fleet = fleet.model_copy(update={"nodes": (*fleet.nodes[:2], *full)})
        one = planned(plan, fleet, ask(FP8, objective="throughput", concurrency=32))
        assert sum(sizes(one)) >= 32
        assert len(one.groups) < 4

    def test_replicas_do_not_share_nodes_if_there_are_others(self, sparks, plan, ask):
        """Four groups over four Sparks each were placed on eight, and promised twice what those can do."""
        for objective in ("throughput", "interactive"):
            spec = ask(FP8, replicas=4, concurrency=32, objective=objective)
            found = nodes(planned(plan, sparks(8, switch=True), spec))
            assert len(found) == len(set(found))

    def test_an_argument_is_of_each_engine(self, sparks, plan, ask):
        spec = ask(GPT, replicas=2, engine="vllm", engine_args=["--max-num-seqs", "12"])
        assert sizes(planned(plan, sparks(2), spec)) == [12, 12]

    def test_fewer_replicas_are_no_suggestion_if_their_share_does_not_fit(self, sparks, plan, ask):
        spec = ask(FP8, replicas=3, concurrency=150, context=32_768)
        (refused,) = plan(sparks(2), spec).refused
        assert "fits with `replicas: 2`" not in refused.nearest


class TestScale:
    def test_other_numbers_of_replicas_start_no_running_engine_again(self, sparks, plan, ask):
        fleet = sparks(4, switch=True)
        before = planned(plan, fleet, ask(GPT, replicas=2, concurrency=32, parallel={"tp": 1}))
        for number in (4, 1, 3, 2):
            after = planned(
                plan, fleet, ask(GPT, replicas=number, concurrency=32, parallel={"tp": 1}), before
            )
            assert sizes(after) == [16] * number
            assert kept(before, after) == min(number, len(before.groups))
            before = after

    def test_too_few_for_all_requests_are_named(self, sparks, plan, ask):
        fleet = sparks(2)
        before = planned(plan, fleet, ask(GPT, replicas=2, concurrency=32))
        after = planned(plan, fleet, ask(GPT, replicas=1, concurrency=32), before)
        notes = after.groups[0].choice.notes
        assert any(note.startswith("16 of 32 requests run at once, the others wait") for note in notes)
        assert not any("at once" in note for note in before.groups[0].choice.notes)

    def test_the_shape_stays_too(self, sparks, plan, ask):
        """One replica alone would take both Sparks."""
        fleet = sparks(2)
        before = planned(plan, fleet, ask(GPT, replicas=2))
        after = planned(plan, fleet, ask(GPT, replicas=1), before)
        assert planned(plan, fleet, ask(GPT, replicas=1)).groups[0].choice.candidate.shape.ranks == 2
        assert kept(before, after) == 1

    def test_more_replicas_than_nodes_start_no_running_engine_again(self, sparks, plan, ask):
        small = "Qwen/Qwen3.6-35B-A3B-FP8"
        before = planned(plan, sparks(2), ask(small, replicas=2, concurrency=4))
        after = planned(plan, sparks(2), ask(small, replicas=3, concurrency=4), before)
        assert (sizes(after), kept(before, after)) == ([2, 2, 2], 2)

    def test_a_wide_group_is_no_reason_for_two_on_the_same_nodes(self, sparks, plan, ask):
        fleet = sparks(2)
        before = planned(plan, fleet, ask(GPT, replicas=1))
        found = nodes(planned(plan, fleet, ask(GPT, replicas=2), before))
        assert sorted(found) == ["spark1", "spark2"]

    def test_another_concurrency_is_shared_anew(self, sparks, plan, ask):
        fleet = sparks(2)
        before = planned(plan, fleet, ask(GPT, replicas=2, concurrency=32))
        after = planned(plan, fleet, ask(GPT, replicas=2, concurrency=16), before)
        assert (sizes(after), kept(before, after)) == ([8, 8], 0)

    def test_retry_sizes_what_runs_again(self, sparks, plan, ask):
        before = planned(plan, sparks(2), ask(GPT, replicas=2, concurrency=32))
        spec = ask(GPT, replicas=1, concurrency=32, parallel={"tp": 1})
        fleet, known = sparks(2), {GPT: known_checkpoint(GPT)}
        found = plan_fleet([spec], fleet, known, {"m": before}, resized=True).deployments[0]
        assert sizes(found) == [32]

    def test_what_starts_again_anyway_is_sized_anew(self, sparks, plan, ask):
        fleet = sparks(2)
        before = planned(plan, fleet, ask(GPT, replicas=2, concurrency=32))
        after = planned(
            plan,
            fleet,
            ask(
                GPT,
                replicas=1,
                concurrency=32,
                image="vllm/vllm-openai:v0.31.0-aarch64",
                engine="vllm",
                engine_args=["--seed", "7"],
            ),
            before,
        )
        assert sizes(after) == [32]

    def test_a_node_less_starts_no_engine_of_the_others_again(self, sparks, plan, ask):
        """`drain` of a node: the number of groups that the planner chose falls."""
        spec = ask(GPT, objective="throughput", concurrency=32, parallel={"tp": 1})
        before = planned(plan, sparks(4, switch=True), spec)
        after = planned(plan, sparks(3, switch=True), spec, before)
        assert (sizes(after), kept(before, after)) == ([8] * 3, 3)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 48), st.sampled_from(["interactive", "throughput"])
)
def test_shares_hold_all_requests_and_scaling_keeps_what_runs(
    sparks, plan, ask, first, then, requests, objective
):
    fields = {"concurrency": requests, "objective": objective, "parallel": {"tp": 1}}
    fleet = sparks(4, switch=True)
    before = planned(plan, fleet, ask(GPT, replicas=first, **fields))
    assert sum(sizes(before)) >= requests
    assert max(sizes(before)) * (first - 1) < requests + first
    after = planned(plan, fleet, ask(GPT, replicas=then, **fields), before)
    assert kept(before, after) == min(first, then)
