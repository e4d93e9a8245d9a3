import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.fabric.port_scan import NeighbourAnswer
from sparkfleet.fabric.topology import find_links
from sparkfleet.hostfacts.network.lldp import LldpNeighbour

HALVES = (("enp1s0f0np0", "enP2p1s0f0np0"), ("enp1s0f1np1", "enP2p1s0f1np1"))


def rails(link):
    return [tuple(end.netdev.name for end in rail.ends) for rail in link.rails]


@pytest.mark.parametrize("method", ["ipv6", "arp"])
def test_a_cable_is_two_rails(cabled, method):
    found = find_links(cabled(2, ((1, 1), (2, 1)), method=method))
    assert found.kind == "direct"
    (link,) = found.links
    assert link.nodes == ("spark1", "spark2")
    assert rails(link) == [("enp1s0f1np1", "enp1s0f1np1"), ("enP2p1s0f1np1", "enP2p1s0f1np1")]
    assert link.rails[0].ends[0].rdma == "rocep1s0f1"
    assert link.rails[0].methods == (method,)
    assert found.findings == ()


RENAMED = {"enp1s0f1np1": ("fast0", "0000:01:00.1"), "enP2p1s0f1np1": ("fast1", "0002:01:00.1")}


def renamed(view):
    """A Spark whose netdevs have names of their own, as by `set-name` of netplan."""

    def name(one):
        return RENAMED[one.netdev][0]

    netdevs = [
        one.model_copy(update=dict(zip(("name", "pci"), RENAMED[one.name], strict=True)))
        if one.name in RENAMED
        else one
        for one in view.netdevs
    ]
    rdma = [one.model_copy(update={"netdev": name(one)}) for one in view.rdma]
    answers = [one.model_copy(update={"netdev": name(one)}) for one in view.answers]
    changed = {"netdevs": tuple(netdevs), "rdma": tuple(rdma), "answers": tuple(answers)}
    return view.model_copy(update=changed)


@pytest.mark.parametrize("both", [True, False])
def test_renamed_halves_are_one_cable(cabled, both):
    """They were two cables of one rail each."""
    one, other = cabled(2, ((1, 1), (2, 1)))
    found = find_links([renamed(one), renamed(other) if both else other])
    (link,) = found.links
    theirs = ("fast0", "fast1") if both else ("enp1s0f1np1", "enP2p1s0f1np1")
    assert rails(link) == [("fast0", theirs[0]), ("fast1", theirs[1])]
    assert found.findings == ()


def test_a_cable_between_different_ports(cabled):
    (link,) = find_links(cabled(2, ((1, 0), (2, 1)))).links
    assert rails(link) == [("enp1s0f0np0", "enp1s0f1np1"), ("enP2p1s0f0np0", "enP2p1s0f1np1")]


@pytest.mark.parametrize("size", [3, 4])
def test_a_ring(cabled, size):
    cables = [((n, 0), (n % size + 1, 1)) for n in range(1, size + 1)]
    found = find_links(cabled(size, *cables))
    assert found.kind == "ring"
    assert len(found.links) == size
    assert all(len(link.rails) == 2 and link.switch is None for link in found.links)


def test_two_cables_between_two_nodes_are_two_links(cabled):
    found = find_links(cabled(2, ((1, 0), (2, 0)), ((1, 1), (2, 1))))
    assert [link.nodes for link in found.links] == [("spark1", "spark2")] * 2
    assert found.kind == "direct"


def test_a_chain_is_neither_a_ring_nor_direct(cabled):
    assert find_links(cabled(3, ((1, 0), (2, 1)), ((2, 0), (3, 1)))).kind == "mixed"


def test_halves_that_are_adjacent_through_the_nic_are_one_cable(netdev, spark):
    """A direct cable on which every half receives from both halves of the other side, and from its own other half."""
    names = HALVES[1]
    macs = [netdev(node, name).mac for node in (1, 2) for name in names]
    views = [
        spark(
            node,
            *(netdev(node, name) for name in names),
            answers=tuple(
                NeighbourAnswer(netdev=name, method="arp", mac=mac) for name in names for mac in macs
            ),
        )
        for node in (1, 2)
    ]
    (link,) = find_links(views).links
    assert link.switch is None
    assert rails(link) == [(name, name) for name in names]


def on_a_switch(netdev, spark, count):
    name = HALVES[1][0]
    everybody = tuple(
        NeighbourAnswer(netdev=name, method="ipv6", address=netdev(node, name).link_local[0])
        for node in range(1, count + 1)
    )
    return [spark(node, netdev(node, name), answers=everybody) for node in range(1, count + 1)]


def test_more_than_two_on_one_wire_are_at_a_switch(netdev, spark):
    found = find_links(on_a_switch(netdev, spark, 4))
    assert found.kind == "switch"
    assert [link.nodes for link in found.links] == [(f"spark{n}",) for n in range(1, 5)]
    assert {link.switch for link in found.links} == {"switch"}


def test_two_nodes_at_a_switch_are_found_by_lldp(netdev, spark):
    views = [
        view.model_copy(
            update={"lldp": (LldpNeighbour(netdev=HALVES[1][0], system="CRS-812 (lab)", bridge=True),)}
        )
        for view in on_a_switch(netdev, spark, 2)
    ]
    found = find_links(views)
    assert {link.switch for link in found.links} == {"crs-812-lab"}
    assert found.links[0].rails[0].methods == ("ipv6", "lldp")


def test_lldp_alone_finds_a_cable(netdev, spark):
    name = HALVES[1][0]
    views = [
        spark(
            node,
            netdev(node, name),
            lldp=(LldpNeighbour(netdev=name, macs=(netdev(3 - node, name).mac,)),),
        )
        for node in (1, 2)
    ]
    (link,) = find_links(views).links
    assert link.rails[0].methods == ("lldp",)


def test_an_answer_at_one_end_is_enough(netdev, spark):
    name = HALVES[1][0]
    answers = (NeighbourAnswer(netdev=name, method="arp", mac=netdev(2, name).mac),)
    views = [spark(1, netdev(1, name), answers=answers), spark(2, netdev(2, name))]
    assert len(find_links(views).links) == 1


numbers = st.integers(1, 4)
adjacency = st.lists(
    st.tuples(numbers, st.sampled_from(sum(HALVES, ())), numbers, st.sampled_from(sum(HALVES, ())))
)


@given(adjacency)
def test_any_answers_give_each_device_at_most_one_rail_and_account_for_all(netdev, spark, adjacency):
    views = [
        spark(
            node,
            *(netdev(node, name) for halves in HALVES for name in halves),
            answers=tuple(
                NeighbourAnswer(netdev=mine, method="arp", mac=netdev(other, theirs).mac)
                for who, mine, other, theirs in adjacency
                if who == node
            ),
        )
        for node in range(1, 5)
    ]
    found = find_links(views)
    used = [(end.node, end.netdev.name) for link in found.links for rail in link.rails for end in rail.ends]
    told = [(finding.node, finding.netdev) for finding in found.findings]
    assert len(used) == len(set(used))
    assert set(used) | set(told) == {
        (f"spark{n}", name) for n in range(1, 5) for half in HALVES for name in half
    }
    assert not set(used) & set(told)
