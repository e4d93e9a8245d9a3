from sparkfleet.fabric.adjacency import adjacency_of, bridges_of
from sparkfleet.fabric.port_scan import NeighbourAnswer
from sparkfleet.fabric.ports import Port
from sparkfleet.hostfacts.network.lldp import LldpNeighbour

NAME = "enp1s0f1np1"
HERE, THERE = Port("spark1", NAME), Port("spark2", NAME)


def answer(mac):
    return (NeighbourAnswer(netdev=NAME, method="arp", mac=mac),)


def test_an_answer_at_one_end_counts_for_both(netdev, spark):
    one, other = netdev(1, NAME), netdev(2, NAME)
    views = [spark(1, one, answers=answer(other.mac)), spark(2, other)]
    adjacency, strangers = adjacency_of(views, {HERE: one, THERE: other})
    assert adjacency == {HERE: {THERE: {"arp"}}, THERE: {HERE: {"arp"}}}
    assert strangers == {}


def test_an_answer_of_a_port_without_a_carrier_does_not_count(netdev, spark):
    """At a switch the neighbours of an unplugged rail have its MAC for some seconds: `init` wrote that rail."""
    one, other = netdev(1, NAME), netdev(2, NAME, carrier=False)
    views = [spark(1, one, answers=answer(other.mac)), spark(2, other)]
    assert adjacency_of(views, {HERE: one, THERE: other}) == ({}, {})


def test_a_mac_of_two_ports_identifies_neither(netdev, spark):
    twin = netdev(1, NAME)
    third = Port("spark3", NAME)
    views = [spark(3, netdev(3, NAME), answers=answer(twin.mac))]
    adjacency, strangers = adjacency_of(views, {HERE: twin, THERE: twin, third: netdev(3, NAME)})
    assert adjacency == {}
    assert strangers == {third: twin.mac}


def test_a_switch_is_a_bridge_not_a_port(netdev, spark):
    one = netdev(1, NAME)
    switch = LldpNeighbour(netdev=NAME, system="crs812", macs=(netdev(2, NAME).mac,), bridge=True)
    views, ports = [spark(1, one, lldp=(switch,))], {HERE: one, THERE: netdev(2, NAME)}
    assert adjacency_of(views, ports) == ({}, {})
    assert dict(bridges_of(views, ports)) == {HERE: "crs812"}
