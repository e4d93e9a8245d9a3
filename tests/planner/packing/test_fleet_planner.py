import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning_values import choice, plan_on

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.predictor import predictor_of
from sparkfleet.planner.packing.fleet_planner import plan_fleet

FP8 = "Qwen/Qwen3.6-27B-FP8"

SMALL = "Qwen/Qwen3-30B-A3B-FP8"

LARGE = "Qwen/Qwen3-235B-A22B-GPTQ-Int4"

HALF = 64_000_000_000

MODELS = (FP8, SMALL, "openai/gpt-oss-120b", "nvidia/Qwen3.6-27B-NVFP4", LARGE)


class TestOnDemand:
    """They take turns, so each has all the memory that the others leave."""

    def test_two_that_fit_only_alone_are_planned_for_one_spark(self, sparks, plan, ask):
        specs = [ask("openai/gpt-oss-120b", name, concurrency=8, on_demand=True) for name in "ab"]
        found = plan(sparks(1), *specs)
        alone = plan(sparks(1), specs[0])
        assert [one.name for one in found.deployments] == ["a", "b"]
        assert choice(found).candidate == choice(alone).candidate
        (load,) = found.nodes
        assert (load.placed, [name for name, _ in load.on_demand]) == ((), ["a", "b"])

    def test_what_is_not_on_demand_is_placed_first_and_keeps_its_memory(self, sparks, plan, ask):
        always = ask("openai/gpt-oss-120b", "always", concurrency=8)
        found = plan(sparks(1), ask(FP8, "late", on_demand=True), always)
        assert choice(plan(sparks(1), always)).candidate == found.of("always").groups[0].choice.candidate
        (load,) = found.nodes
        held = dict(load.placed)["always"] + dict(load.on_demand)["late"]
        assert held <= load.usable
        refused = plan(sparks(1), always, ask("openai/gpt-oss-120b", "late", concurrency=8, on_demand=True))
        assert [one.name for one in refused.refused] == ["late"]

    @pytest.mark.parametrize(
        ("turns", "name"),
        [({"yielding": ["a"]}, "b"), ({"yielding": ["a"]}, "a"), ({"unloaded": ["a"]}, "a")],
    )
    def test_one_that_is_loaded_gives_its_memory_to_what_is_planned_and_an_unloaded_one_holds_none(
        self, sparks, plan, ask, turns, name
    ):
        specs = {one: ask("openai/gpt-oss-120b", one, concurrency=8, on_demand=True) for one in "ab"}
        before = plan(sparks(1), specs["a"])
        held = 0 if "unloaded" in turns else choice(before).prediction.memory_bytes_per_rank.mid
        fleet = sparks(1)
        node = fleet.nodes[0]
        left = node.memory.model_copy(update={"available": node.memory.available - round(held)})
        fleet = fleet.model_copy(update={"nodes": (node.model_copy(update={"memory": left}),)})
        running = {"a": before.of("a")}
        again = plan(fleet, specs[name], running=running, **turns)
        assert choice(again).candidate.shape == choice(before).candidate.shape
        assert again.nodes[0].usable == pytest.approx(before.nodes[0].usable, abs=2)


class TestTogether:
    def test_unlike_deployments_get_nodes_of_their_own(self, sparks, plan, ask):
        found = plan(sparks(2), ask(FP8, "a"), ask(SMALL, "b"))
        assert {choice(found).candidate.shape.nodes for _ in "a"} != {
            found.of("b").groups[0].choice.candidate.shape.nodes
        }

    def test_the_large_one_is_placed_first(self, sparks, plan, ask):
        found = plan(sparks(3, switch=True), ask(SMALL, "small"), ask(LARGE, "large", parallel={"tp": 2}))
        large, small = found.of("large"), found.of("small")
        assert not set(large.groups[0].choice.candidate.shape.nodes) & set(
            small.groups[0].choice.candidate.shape.nodes
        )

    def test_a_pinned_one_keeps_its_node(self, sparks, plan, ask):
        found = plan(sparks(2), ask("openai/gpt-oss-120b", "big"), ask(SMALL, "here", nodes=["spark1"]))
        assert found.of("here").groups[0].choice.candidate.shape.nodes == ("spark1",)
        assert found.of("big").groups[0].choice.candidate.shape.nodes == ("spark2",)

    def test_sharing_a_node_is_told(self, sparks, plan, ask):
        found = plan(sparks(1), ask(FP8, "a"), ask(SMALL, "b"))
        notes = [note for one in found.deployments for note in one.groups[0].choice.notes]
        assert any("shares memory bandwidth with" in note for note in notes)

    def test_what_does_not_fit_beside_the_others_is_refused(self, sparks, plan, ask):
        specs = [ask("openai/gpt-oss-120b", f"m{n}", context=32768, concurrency=8) for n in range(3)]
        found = plan(sparks(1), *specs)
        assert len(found.deployments) == 1
        assert {refusal.rejected[-1].why for refusal in found.refused} <= {"memory", "engine"}

    def test_custom_workloads_are_counted(self, sparks, plan, ask):
        tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="24 GiB")
        found = plan(sparks(1), tts, ask(SMALL, "lm"))
        (load,) = found.nodes
        assert dict(load.placed)["tts"] == 24 << 30
        rung = found.of("tts").groups[0].choice
        candidate = rung.candidate
        assert (candidate.engine, candidate.port, candidate.health) == ("custom", 5005, "/health")
        assert "hangs after the start are not detected" in rung.reason
        huge = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="200 GiB")
        (refused,) = plan(sparks(1), huge).refused
        assert "200 GiB declared" in refused.rejected[0].reason
        assert not refused.nearest

    def test_a_custom_workload_that_says_where_it_is_well_is_asked_there(self, sparks, plan, ask):
        image = "localhost/tts:1"
        tts = ask("org/tts", "tts", engine="custom", image=image, port=5005, memory="24 GiB", health="/well")
        rung = plan(sparks(1), tts).of("tts").groups[0].choice
        assert (rung.candidate.health, rung.reason) == ("/well", "set in the deployment")

    def test_a_custom_workload_without_room_beside_others_would_fit_on_a_node_of_its_own(
        self, sparks, plan, ask
    ):
        tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="24 GiB")
        full = {"engine_args": ["--gpu-memory-utilization=0.85"], "engine": "vllm", "nodes": ["spark1"]}
        (refused,) = plan(sparks(1), tts, ask(SMALL, "lm", **full)).refused
        assert (refused.name, refused.nearest) == ("tts", ("fits with one more node",))

    def test_running_groups_stay_where_they_are(self, sparks, plan, ask):
        fleet = sparks(4, switch=True)
        spec = ask(SMALL, "b")
        first = plan(fleet, spec, ask(FP8, "a", nodes=["spark1"]))
        again = plan(fleet, spec, running={"b": first.of("b")})
        assert (
            again.of("b").groups[0].choice.candidate.shape == first.of("b").groups[0].choice.candidate.shape
        )

    @pytest.mark.parametrize(
        ("seen", "declared", "known"),
        [(True, True, True), (False, True, False), (None, True, None), (None, False, False)],
    )
    def test_of_each_group_it_is_said_what_its_weights_are(self, sparks, ask, seen, declared, known):
        changed = known_checkpoint(SMALL).model_copy(update={"vision": seen, "declares_vision": declared})
        (made,) = plan_fleet([ask(SMALL)], sparks(1), {SMALL: changed}).deployments
        assert {(group.family, group.vision) for group in made.groups} == {("qwen3_moe", known)}

    def test_of_a_model_without_facts_nothing_is_said(self, cpu_node, ask):
        (group,) = plan_on(ask("builtin:tiny"), [cpu_node()]).groups
        assert (group.family, group.vision) == ("", None)

    def test_a_variant_that_does_not_fit_leaves_the_others(self, sparks, ask, plan):
        spec = ask(None, variants=[{"model": SMALL}, {"model": LARGE}])
        found = plan(sparks(1), spec)
        assert [group.variant for group in found.deployments[0].groups] == [0]
        assert any("235B" in one.what for one in found.deployments[0].rejected)
        (left,) = found.deployments[0].left_out
        assert (left.variant, left.model, left.nearest) == (1, LARGE, ("fits with two more linked nodes",))
        assert "does not fit: " in left.reason
        assert not plan(sparks(4, switch=True), spec).deployments[0].left_out

    @pytest.mark.parametrize("concurrency", [11, 12, 16, 24, 32, 48])
    def test_what_a_rule_leaves_no_room_for_is_made_smaller(self, sparks, plan, ask, concurrency):
        """A rule lets three pipelined nodes use 0.8 of their memory: the open sizes have to go into that."""
        spec = ask("Qwen/Qwen3.5-122B-A10B-FP8", engine="vllm", concurrency=concurrency)
        (made,) = plan(sparks(3, HALF, switch=True), spec).deployments
        choice = made.groups[0].choice
        assert choice.candidate.concurrency == concurrency
        assert "pp3-util-085-silent-death" in choice.rules
        assert choice.prediction.memory_bytes_per_rank.low <= 0.8 * HALF
        if choice.candidate.context < 32_768:
            assert any(f"context {choice.candidate.context} instead of" in note for note in choice.notes)


asked = st.lists(
    st.tuples(
        st.sampled_from(MODELS),
        st.sampled_from(("interactive", "throughput", "context")),
        st.sampled_from((None, 4096, 32768)),
        st.sampled_from((None, 1, 8)),
    ),
    min_size=1,
    max_size=4,
)

slow = settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def specs_of(asked, ask):
    return [
        ask(
            model,
            f"m{at}",
            **{k: v for k, v in (("context", c), ("concurrency", n)) if v},
            objective=objective,
        )
        for at, (model, objective, c, n) in enumerate(asked)
    ]


@slow
@given(asked=asked, nodes=st.integers(1, 5), total=st.sampled_from((64_000_000_000, 130_600_000_000)))
def test_a_plan_never_places_more_than_a_node_has(sparks, plan, ask, asked, nodes, total):
    found = plan(sparks(nodes, total=total, switch=True), *specs_of(asked, ask))
    for load in found.nodes:
        assert sum(size for _, size in load.placed) <= load.usable <= load.total
    usable = {load.node: load.usable for load in found.nodes}
    for rung in (rung for one in found.deployments for group in one.groups for rung in group.ladder):
        for node in rung.candidate.shape.nodes:
            assert rung.prediction.memory_bytes_per_rank.mid <= usable[node], (
                "no rung is too large for its nodes"
            )
    counted = sum(len(load.placed) for load in found.nodes)
    ranks = sum(group.choice.candidate.shape.ranks for one in found.deployments for group in one.groups)
    assert counted == ranks
    assert len(found.deployments) + len(found.refused) == len(asked)
    for at, (_, _, context, concurrency) in enumerate(asked):
        for group in served.groups if (served := found.of(f"m{at}")) else ():
            for rung in group.ladder:
                assert rung.candidate.context == (context or rung.candidate.context), "pinned is pinned"
                share = -(-concurrency // len(served.groups)) if concurrency else rung.candidate.concurrency
                assert rung.candidate.concurrency == share, "groups share the pinned requests"
                sizes = rung.prediction.largest_context, rung.prediction.largest_concurrency
                assert sizes == (None, None) or sizes >= (rung.candidate.context, rung.candidate.concurrency)


@slow
@given(asked=asked, nodes=st.integers(1, 4))
def test_the_same_input_gives_the_same_plan(sparks, plan, ask, asked, nodes):
    predictor_of.cache_clear()
    first = plan(sparks(nodes, switch=True), *specs_of(asked, ask))
    assert first == plan(sparks(nodes, switch=True), *specs_of(asked, ask))


@slow
@given(
    model=st.sampled_from(MODELS[:4]),
    latency=st.floats(10, 600),
    slower=st.floats(1, 20),
)
def test_a_slower_link_never_favours_more_nodes(sparks, plan, ask, model, latency, slower):
    fast = choice(plan(sparks(2, latency_us=latency), ask(model)))
    slow_ = choice(plan(sparks(2, latency_us=latency * slower, gb_per_s=22.1 / slower), ask(model)))
    assert slow_.candidate.shape.ranks <= fast.candidate.shape.ranks


@slow
@given(
    model=st.sampled_from(MODELS),
    total=st.integers(40, 140),
    more=st.integers(0, 60),
    context=st.sampled_from((4096, 32768)),
)
def test_more_memory_never_makes_a_fit_unfit(sparks, plan, ask, model, total, more, context):
    spec = ask(model, context=context, concurrency=2)
    small = plan(sparks(2, total=total * 10**9), spec)
    large = plan(sparks(2, total=(total + more) * 10**9), spec)
    assert not small.deployments or large.deployments
