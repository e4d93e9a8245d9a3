from sparkfleet.fabric.adjacency import bridges_of, sights_of
from sparkfleet.fabric.port_scan import HeardNeighbour
from sparkfleet.fabric.ports import Port
from sparkfleet.hostfacts.lldp import LldpNeighbour

NAME = "enp1s0f1np1"
HERE, THERE = Port("spark1", NAME), Port("spark2", NAME)


def heard(mac):
    return (HeardNeighbour(netdev=NAME, method="arp", mac=mac),)


def test_what_one_end_heard_counts_for_both(netdev, spark):
    one, other = netdev(1, NAME), netdev(2, NAME)
    views = [spark(1, one, heard=heard(other.mac)), spark(2, other)]
    sights, strangers = sights_of(views, {HERE: one, THERE: other})
    assert sights == {HERE: {THERE: {"arp"}}, THERE: {HERE: {"arp"}}}
    assert strangers == {}


def test_a_mac_that_two_ports_have_names_neither(netdev, spark):
    twin = netdev(1, NAME)
    third = Port("spark3", NAME)
    views = [spark(3, netdev(3, NAME), heard=heard(twin.mac))]
    sights, strangers = sights_of(views, {HERE: twin, THERE: twin, third: netdev(3, NAME)})
    assert sights == {}
    assert strangers == {third: twin.mac}


def test_a_switch_is_a_bridge_and_no_port(netdev, spark):
    one = netdev(1, NAME)
    switch = LldpNeighbour(netdev=NAME, system="crs812", macs=(netdev(2, NAME).mac,), bridge=True)
    views, ports = [spark(1, one, lldp=(switch,))], {HERE: one, THERE: netdev(2, NAME)}
    assert sights_of(views, ports) == ({}, {})
    assert dict(bridges_of(views, ports)) == {HERE: "crs812"}
