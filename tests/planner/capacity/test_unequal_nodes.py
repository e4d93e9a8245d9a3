"""Groups and replicas over Sparks of 128 and 64 GB."""

import pytest

from sparkfleet.planner.place.fleet_map import Fleet

SMALL, LARGE = 64_000_000_000, 130_600_000_000
PAIR = {"parallel": {"tp": 2}}


@pytest.fixture
def mixed(spark, link):
    """mixed(LARGE, SMALL): Sparks with so much memory each, on one switch or with these cables; idle, not read."""

    def mixed(*totals, cables=None):
        names = [f"spark{n}" for n in range(1, len(totals) + 1)]
        links = (
            [link(name, switch="sw") for name in names] if cables is None else [link(*two) for two in cables]
        )
        nodes = tuple(spark(name, total) for name, total in zip(names, totals, strict=True))
        return Fleet(name="home", nodes=nodes, links=tuple(links), assumed=tuple(names))

    return mixed


@pytest.fixture
def groups(mixed, plan, ask):
    """groups(totals, model, **fields): the groups of a deployment."""

    def groups(totals, model="Qwen/Qwen3.6-27B-FP8", cables=None, **fields):
        found = plan(mixed(*totals, cables=cables), ask(model, **fields))
        assert not found.refused, found.refused
        return found.deployments[0].groups

    return groups


def test_a_pair_is_sized_for_its_smaller_node(groups):
    (unequal,) = groups((LARGE, SMALL), **PAIR)
    (equal,) = groups((SMALL, SMALL), **PAIR)
    one, other = unequal.choice.candidate, equal.choice.candidate
    assert (one.context, one.concurrency, one.memory_fraction) == (
        other.context,
        other.concurrency,
        other.memory_fraction,
    )
    note = next(note for note in unequal.choice.notes if note.startswith("unequal memory"))
    assert "spark1 128 GB, spark2 64 GB; every rank has the room of spark2" in note
    assert "cannot use 62 GiB of spark1" in note
    assert not any("unequal" in note for note in equal.choice.notes)


def test_each_rank_of_vllm_takes_its_share_of_its_own_node(groups):
    (group,) = groups((LARGE, SMALL), engine="vllm", **PAIR)
    candidate = group.choice.candidate
    large, small = candidate.memory_fractions
    assert small == candidate.memory_fraction == candidate.fraction_of(1)
    assert large * LARGE == pytest.approx(small * SMALL, abs=0.01 * LARGE)
    need = group.choice.prediction.memory_bytes_per_rank
    assert need.mid <= large * LARGE


def test_ranks_of_sglang_have_one_share_for_they_agree_on_the_least_free_memory(groups):
    (group,) = groups((LARGE, SMALL), engine="sglang", **PAIR)
    assert group.choice.candidate.memory_fractions == ()


def test_nodes_of_one_size_have_one_share(groups):
    (group,) = groups((LARGE, LARGE - (3 << 29)), engine="vllm", **PAIR)
    assert group.choice.candidate.memory_fractions == ()


def test_a_share_in_the_deployment_is_every_nodes(groups):
    (group,) = groups((LARGE, SMALL), engine="vllm", engine_args=["--gpu-memory-utilization", "0.7"], **PAIR)
    assert group.choice.candidate.memory_fractions == ()
    assert group.choice.candidate.memory_fraction == 0.7


def test_a_share_that_the_larger_node_does_not_have_beside_another_deployment_is_named(mixed, plan, ask):
    share = {"engine": "vllm", "engine_args": ["--gpu-memory-utilization", "0.7"], **PAIR}
    first = ask("Qwen/Qwen3.6-27B-FP8", "first", nodes=["spark1"], parallel={"tp": 1})
    second = ask("Qwen/Qwen3.6-27B-FP8", "second", **share)
    found = plan(mixed(LARGE, SMALL), first, second).of("second")
    assert found is not None
    assert any("requires 0.7 of each node's own memory" in note for note in found.groups[0].choice.notes)
    alone = plan(mixed(LARGE, SMALL), second).of("second")
    assert not any("requires" in note for note in alone.groups[0].choice.notes)


@pytest.mark.parametrize("totals", [(SMALL, LARGE, LARGE), (LARGE, SMALL, LARGE), (LARGE, SMALL, SMALL)])
def test_a_group_takes_nodes_of_one_size_from_a_switch(groups, totals):
    (group,) = groups(totals, **PAIR)
    nodes = group.choice.candidate.shape.nodes
    taken = {totals[int(node.removeprefix("spark")) - 1] for node in nodes}
    other = next(f"spark{at}" for at in (1, 2, 3) if f"spark{at}" not in nodes)
    assert len(taken) == 1
    assert f"rather than with {other} " in group.choice.reason
    assert "; nodes of equal memory, " in group.choice.reason


@pytest.mark.parametrize("first", [24.0, 23.7])
def test_a_group_takes_the_cable_between_nodes_of_one_size(spark, link, plan, ask, first):
    nodes = (spark("spark1", SMALL), spark("spark2", LARGE), spark("spark3", LARGE))
    links = (link("spark1", "spark2", latency_us=first), link("spark2", "spark3"))
    found = plan(Fleet(nodes=nodes, links=links), ask(**PAIR))
    assert found.deployments[0].groups[0].choice.candidate.shape.nodes == ("spark2", "spark3")


def test_a_model_that_needs_all_is_split_over_all(groups):
    (group,) = groups((LARGE, SMALL, LARGE, SMALL), "Qwen/Qwen3.5-122B-A10B-FP8")
    assert len(group.choice.candidate.shape.nodes) == 4
    assert "equal memory" not in group.choice.reason


def test_replicas_go_to_nodes_of_both_sizes_with_the_sizes_of_the_smaller(groups):
    found = groups((LARGE, SMALL, LARGE, SMALL), replicas=4, parallel={"tp": 1}, engine="sglang")
    places = [group.choice.candidate.shape.nodes for group in found]
    assert sorted(places) == [("spark1",), ("spark2",), ("spark3",), ("spark4",)]
    assert len({(group.choice.candidate.context, group.choice.candidate.concurrency) for group in found}) == 1
    small = found[0].choice.candidate.memory_fraction
    for group in found:
        candidate, notes = group.choice.candidate, group.choice.notes
        large = candidate.shape.nodes[0] in ("spark1", "spark3")
        assert candidate.fraction_of(0) == (
            pytest.approx(small * SMALL / LARGE, abs=0.01) if large else small
        )
        assert any("fit the smallest (64 GB)" in note and "two `variants`" in note for note in notes)


def test_replicas_do_not_share_a_node_beside_an_idle_smaller_one(groups):
    found = groups((LARGE, SMALL), replicas=2, parallel={"tp": 1})
    assert {group.choice.candidate.shape.nodes for group in found} == {("spark1",), ("spark2",)}


def test_replicas_share_the_larger_node_if_the_smaller_has_no_room(groups):
    found = groups((LARGE, 30_000_000_000), replicas=2, parallel={"tp": 1})
    assert [group.choice.candidate.shape.nodes for group in found] == [("spark1",), ("spark1",)]


def test_replicas_of_pairs(groups):
    cables = (("spark1", "spark2"), ("spark3", "spark4"))
    found = groups((LARGE, LARGE, SMALL, SMALL), cables=cables, replicas=2, engine="vllm", **PAIR)
    assert {group.choice.candidate.shape.nodes for group in found} == set(cables)


def test_variants_with_their_nodes_are_sized_apart(groups):
    model = "Qwen/Qwen3.6-27B-FP8"
    each = [{"model": model, "nodes": [node], "parallel": {"tp": 1}} for node in ("spark1", "spark2")]
    first, second = groups((LARGE, SMALL), None, variants=each)
    assert first.choice.candidate.concurrency > second.choice.candidate.concurrency
    assert not any("unequal" in note for group in (first, second) for note in group.choice.notes)
