import pytest

from sparkfleet.engines.base import RankRail
from sparkfleet.engines.rendezvous import Management, rank_networks
from sparkfleet.errors import EngineError
from sparkfleet.specs.inventory import Link


def link(*ends, switch=None):
    """ends: "node:netdev:address" of each rail, rails apart by "|"."""
    rails, nodes = [], []
    for rail in "|".join(ends).split("|") if len(ends) == 1 else ends:
        told = [end.split(":") for end in rail.split()]
        nodes = [node for node, _, _ in told]
        rails.append([{"netdev": dev, "rdma": f"roce-{dev}", "address": at} for _, dev, at in told])
    fields = {"nodes": nodes, "rails": rails}
    return Link.model_validate({**fields, **({"switch": switch} if switch else {})}, strict=False)


PAIR = link("a:x1:10.0.0.1/24 b:x1:10.0.0.2/24", "a:x2:10.0.1.1/24 b:y2:10.0.1.2/24")


def test_a_pair_meets_on_the_first_rail_and_uses_both():
    first, second = rank_networks([PAIR], ["b", "a"])
    assert first.leader == second.leader == "10.0.0.2"
    assert first.peers == second.peers == ("10.0.0.2", "10.0.0.1")
    assert second.rails == (
        RankRail(netdev="x1", rdma="roce-x1", address="10.0.0.1"),
        RankRail(netdev="x2", rdma="roce-x2", address="10.0.1.1"),
    )
    assert first.rails[0].address == first.leader
    assert [rail.netdev for rail in first.rails] == ["x1", "y2"]
    assert first.control_netdev == ""


def test_a_group_of_one_meets_nobody():
    assert rank_networks([PAIR], ["a"]) == ()


def test_links_to_nodes_outside_the_group_carry_nothing():
    other = link("a:z1:10.9.0.1/24 c:z1:10.9.0.2/24")
    (first, _) = rank_networks([other, PAIR], ["a", "b"])
    assert [rail.netdev for rail in first.rails] == ["x1", "x2"]


def test_over_a_switch_every_node_has_its_own_cable():
    links = [
        link(f"{node}:s1:10.0.0.{n}/24", f"{node}:s2:10.0.1.{n}/24", switch="sw")
        for n, node in enumerate("abc", 1)
    ]
    found = rank_networks(links, ["a", "b", "c"])
    assert found[2].leader == "10.0.0.1"
    assert [rail.address for rail in found[2].rails] == ["10.0.0.3", "10.0.1.3"]


RING = [
    link("a:p0:10.0.1.1/24 b:p1:10.0.1.2/24"),
    link("b:p0:10.0.2.1/24 c:p1:10.0.2.2/24"),
    link("c:p0:10.0.3.1/24 a:p1:10.0.3.2/24"),
]
LAN = {node: Management(netdev=f"lan-{node}", address=f"192.168.1.{n}") for n, node in enumerate("abc", 1)}


def test_a_ring_meets_on_the_management_network_and_sends_over_all_its_rails():
    found = rank_networks(RING, ["a", "b", "c"], LAN)
    assert [one.control_netdev for one in found] == ["lan-a", "lan-b", "lan-c"]
    assert found[0].peers == ("192.168.1.1", "192.168.1.2", "192.168.1.3")
    assert [rail.address for rail in found[0].rails] == ["10.0.1.1", "10.0.3.2"]


def test_a_ring_without_a_known_management_network_is_refused():
    with pytest.raises(EngineError, match="management network of c"):
        rank_networks(RING, ["a", "b", "c"], {"a": LAN["a"], "b": LAN["b"]})


def test_nodes_without_a_link_are_refused():
    with pytest.raises(EngineError, match="c has no link"):
        rank_networks([PAIR], ["a", "b", "c"], LAN)
