from __future__ import annotations

from itertools import combinations

import pytest

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.layout import MOST_NODES, Layout, Topology, fabric_end, make_layout


def layouts() -> list[Layout]:
    sizes = [
        (1, None),
        (2, None),
        (4, None),
        (3, Topology.RING),
        (4, Topology.RING),
        (MOST_NODES, None),
        (MOST_NODES, Topology.RING),
    ]
    return [make_layout("x", nodes, topology, 7) for nodes, topology in sizes]


@pytest.mark.parametrize("layout", layouts(), ids=lambda layout: f"{layout.topology}{len(layout.nodes)}")
def test_names_and_addresses_are_unique(layout: Layout) -> None:
    addresses = [node.address for node in layout.nodes]
    assert len(set(addresses)) == len(addresses)
    for node in layout.nodes:
        ends = list(layout.ends(node.name))
        assert len({end.netdev for end in ends}) == len(ends)
        assert len({end.address.rpartition(".")[0] for end in ends}) == len(ends), (
            "one subnet per rail of a node"
        )
    rails = [rail for cable in layout.cables for rail in cable.rails]
    everywhere = [end.address for rail in rails for end in rail.ends]
    assert len(set(everywhere)) == len(everywhere)


@pytest.mark.parametrize("layout", layouts(), ids=lambda layout: f"{layout.topology}{len(layout.nodes)}")
def test_device_names_fit_the_kernel(layout: Layout) -> None:
    names = [layout.operator_netdev, *(rail.bridge for cable in layout.cables for rail in cable.rails)]
    names += [fabric_end(node.number, "enP2p1s0f1np1") for node in layout.nodes]
    assert all(len(name) <= 15 for name in names)
    assert len({fabric_end(n.number, d) for n in layout.nodes for d in ("enp1s0f0np0", "enP7s7")}) == 2 * len(
        layout.nodes
    )


def test_a_pair_has_one_cable_in_port_1() -> None:
    (cable,) = make_layout("x", 2, None, 1).cables
    assert cable.name == "spark1-spark2"
    assert [[(end.netdev, end.rdma, end.address) for end in rail.ends] for rail in cable.rails] == [
        [
            ("enp1s0f1np1", "rocep1s0f1", "192.168.100.10/24"),
            ("enp1s0f1np1", "rocep1s0f1", "192.168.100.11/24"),
        ],
        [
            ("enP2p1s0f1np1", "roceP2p1s0f1", "192.168.101.10/24"),
            ("enP2p1s0f1np1", "roceP2p1s0f1", "192.168.101.11/24"),
        ],
    ]


def test_a_ring_goes_from_port_0_to_port_1_of_the_next() -> None:
    layout = make_layout("x", 3, Topology.RING, 1)
    assert [cable.name for cable in layout.cables] == ["spark1-spark2", "spark2-spark3", "spark1-spark3"]
    assert {(end.node, end.netdev) for end in layout.cables[0].rails[0].ends} == {
        ("spark1", "enp1s0f0np0"),
        ("spark2", "enp1s0f1np1"),
    }
    assert all(len(list(layout.ends(node.name))) == 4 for node in layout.nodes)


def test_a_switch_joins_first_halves_with_first_halves() -> None:
    layout = make_layout("x", 3, Topology.SWITCH, 1)
    assert [cable.name for cable in layout.cables] == ["spark1-switch", "spark2-switch", "spark3-switch"]
    for one, other in combinations(layout.cables, 2):
        assert one.rails[0].ends[0].address.startswith("192.168.100.")
        assert other.rails[1].ends[0].address.startswith("192.168.101.")


def test_a_link_is_found_from_either_end() -> None:
    layout = make_layout("x", 2, None, 1)
    assert layout.cable("spark2-spark1") is layout.cable("spark1-spark2")
    with pytest.raises(LabError, match="no link 'spark1-spark3'"):
        layout.cable("spark1-spark3")


@pytest.mark.parametrize(
    ("nodes", "topology"),
    [(0, None), (3, Topology.DIRECT), (2, Topology.RING), (65, None), (-1, Topology.SWITCH)],
)
def test_invalid_sizes_are_refused(nodes: int, topology: Topology | None) -> None:
    with pytest.raises(LabError) as error:
        make_layout("x", nodes, topology, 1)
    assert error.value.do


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "elevenchars", "a;b", "../x", "a\n"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(LabError):
        make_layout(name, 2, None, 1)
