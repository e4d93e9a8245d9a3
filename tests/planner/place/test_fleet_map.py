import pytest

from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.specs.load import load_inventory


def joined(spark, link, *pairs, count=4):
    nodes = tuple(spark(f"s{n}") for n in range(1, count + 1))
    return Fleet(nodes=nodes, links=tuple(link(*pair) for pair in pairs))


def test_nodes_alone_are_one_pool_per_kind(spark):
    fleet = Fleet(
        nodes=(spark("a"), spark("b", total=130_600_000_000 - (1 << 20)), spark("c", total=64_000_000_000))
    )
    pools = fleet.pools(1)
    assert sorted(pool.nodes for pool in pools) == [("a", "b"), ("c",)], "a few MiB are no other kind"
    assert all(pool.site.link is None and pool.site.link_id is None for pool in pools)


def test_two_nodes_need_a_link(spark, link):
    assert joined(spark, link).pools(2) == ()
    (pool,) = joined(spark, link, ("s1", "s3")).pools(2)
    assert pool.nodes == ("s1", "s3")
    assert pool.site.topology == "direct"
    assert pool.site.link_id == "roce-dual"


def test_a_ring_of_three_and_four(spark, link):
    three = joined(spark, link, ("s1", "s2"), ("s2", "s3"), ("s3", "s1"))
    (ring,) = three.pools(3)
    assert set(ring.nodes) == {"s1", "s2", "s3"}
    assert ring.site.link_id == "roce-ring"
    four = joined(spark, link, ("s1", "s2"), ("s2", "s3"), ("s3", "s4"), ("s4", "s1"))
    assert [len(pool.nodes) for pool in four.pools(4)] == [4]
    assert four.pools(3) == ()


def test_a_chain_is_no_ring(spark, link):
    assert joined(spark, link, ("s1", "s2"), ("s2", "s3")).pools(3) == ()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_any_nodes_of_a_switch_are_linked(sparks, ranks):
    (pool,) = sparks(8, switch=True).pools(ranks)
    assert len(pool.nodes) == 8
    assert pool.site.ranks == ranks
    assert pool.site.link_id == "roce-switch"


def test_nodes_of_two_switches_are_not_linked(spark, link):
    nodes = tuple(spark(f"s{n}") for n in range(1, 5))
    links = tuple(link(node.name, switch=f"sw{at % 2}") for at, node in enumerate(nodes))
    fleet = Fleet(nodes=nodes, links=links)
    assert sorted(pool.nodes for pool in fleet.pools(2)) == [("s1", "s3"), ("s2", "s4")]
    assert fleet.pools(4) == ()


def test_small_nodes_make_a_class_of_their_own(spark, link):
    nodes = (spark("big1"), spark("big2"), spark("small", total=64_000_000_000))
    fleet = Fleet(nodes=nodes, links=tuple(link(node.name, switch="sw") for node in nodes))
    pools = {pool.nodes: pool.site.memory_total for pool in fleet.pools(2)}
    assert set(pools) == {("big1", "big2"), ("big1", "big2", "small")}
    assert pools["big1", "big2", "small"] < 65e9, "the smallest counts"


def test_only_allowed_nodes(sparks):
    fleet = sparks(8, switch=True)
    assert fleet.pools(2, ("spark2", "spark5"))[0].nodes == ("spark2", "spark5")
    assert fleet.pools(4, ("spark2", "spark5")) == ()


def test_the_slowest_link_counts(spark, link):
    nodes = tuple(spark(name) for name in ("a", "b", "c"))
    links = (link("a", "b"), link("b", "c", latency_us=90.0, gb_per_s=3.0), link("c", "a"))
    (ring,) = Fleet(nodes=nodes, links=links).pools(3)
    assert ring.site.link.latency_us == 90.0
    assert ring.site.link.gb_per_s == 3.0


def on_switch(spark, link, slow: dict[str, dict[str, float]], count: int = 4) -> Fleet:
    names = [f"s{n}" for n in range(1, count + 1)]
    links = tuple(link(name, switch="sw", **slow.get(name, {})) for name in names)
    return Fleet(nodes=tuple(map(spark, names)), links=links)


def test_a_slow_cable_of_a_switch_slows_only_the_groups_over_it(spark, link):
    fast, every = on_switch(spark, link, {"s2": {"gb_per_s": 2.9}}).pools(2)
    assert (fast.nodes, fast.site.gb_per_s) == (("s1", "s3", "s4"), 22.1)
    assert (every.nodes, every.site.gb_per_s) == (("s1", "s2", "s3", "s4"), 2.9)


def test_cables_that_differ_as_measurements_do_are_one_class(spark, link):
    (pool,) = on_switch(spark, link, {"s2": {"gb_per_s": 19.0}, "s3": {"latency_us": 26.0}}).pools(2)
    assert (len(pool.nodes), pool.site.gb_per_s) == (4, 19.0)


def test_a_group_is_planned_over_the_fast_cables_of_a_switch(spark, link, plan, ask):
    fleet = on_switch(spark, link, {"s1": {"gb_per_s": 2.9, "latency_us": 90.0}})
    wish = ask("openai/gpt-oss-120b", parallel={"tp": 2})
    (group,) = plan(fleet, wish).deployments[0].groups
    assert "s1" not in group.choice.candidate.shape.nodes


def test_a_slow_cable_costs_throughput_no_group(spark, link, plan, ask):
    fleet = on_switch(spark, link, {"s1": {"gb_per_s": 2.9, "latency_us": 90.0}})
    wish = ask("openai/gpt-oss-120b", objective="throughput", parallel={"tp": 2})
    assert len(plan(fleet, wish).deployments[0].groups) == 2


@pytest.mark.parametrize("wish", [{"concurrency": 1}, {"nodes": ["s1", "s2", "s3"]}])
def test_throughput_of_one_group_is_planned_over_the_fast_cables(spark, link, plan, ask, wish):
    fleet = on_switch(spark, link, {"s1": {"gb_per_s": 2.9, "latency_us": 90.0}})
    asked = ask("nvidia/Qwen3-235B-A22B-NVFP4", objective="throughput", parallel={"tp": 2}, **wish)
    (group,) = plan(fleet, asked).deployments[0].groups
    assert set(group.choice.candidate.shape.nodes) == {"s2", "s3"}


def test_one_of_two_that_share_a_switch_has_its_fast_cables(spark, link, plan, ask):
    fleet = on_switch(spark, link, {"s1": {"gb_per_s": 2.9, "latency_us": 90.0}})
    model = "nvidia/Qwen3-235B-A22B-NVFP4"
    found = plan(fleet, *(ask(model, name=name, objective="throughput") for name in ("one", "other")))
    one, other = (found.of(name).groups[0].choice for name in ("one", "other"))
    assert one.candidate.shape.nodes == ("s2", "s3")
    assert one.prediction.decode_tps_per_request.mid > 1.2 * other.prediction.decode_tps_per_request.mid


def test_links_of_the_example_inventories(root):
    two = links_of(load_inventory(root / "docs/examples/inventory-two-sparks.yaml"))
    assert [(one.rails, one.kind, one.provenance.value) for one in two] == [(2, "roce", "default")]
    assert 20 < two[0].latency_us < 30
    eight = links_of(load_inventory(root / "docs/examples/inventory-eight-on-a-switch.yaml"))
    assert len({one.switch for one in eight}) == 1
    assert links_of(load_inventory(root / "docs/examples/inventory-one-spark.yaml")) == ()
