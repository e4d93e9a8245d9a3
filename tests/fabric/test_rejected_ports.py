"""Refused ports, with the reason."""

from sparkfleet.fabric.port_scan import NeighbourAnswer
from sparkfleet.fabric.topology import find_links


def rails(link):
    return [tuple(end.netdev.name for end in rail.ends) for rail in link.rails]


def reasons(views):
    return [str(finding) for finding in find_links(views).findings]


def test_a_signal_without_an_answer_is_no_link(netdev, spark):
    found = find_links([spark(1, netdev(1, "enp1s0f1np1")), spark(2, netdev(2, "enp1s0f1np1"))])
    assert found.links == ()
    assert found.kind == "none"
    assert str(found.findings[0]).startswith("enp1s0f1np1 of spark1 has a signal, but no node answered on it")


def test_a_signal_without_an_address_has_its_own_reason(netdev, spark):
    """A rail at delivery: DHCP by NetworkManager, for ever (NVIDIA/dgx-spark-playbooks#56), and no address in between."""
    bare = netdev(1, "enp1s0f1np1").model_copy(update={"addresses": ()})
    reason, other = reasons([spark(1, bare), spark(2, netdev(2, "enp1s0f1np1"))])
    assert reason.startswith("enp1s0f1np1 of spark1 has a signal, but no address to ask its neighbour from")
    assert "sudo apt install iputils-arping` on spark1" in reason
    assert other.startswith("enp1s0f1np1 of spark2 has a signal, but no node answered on it")


def test_a_broken_half_leaves_one_rail_with_the_reason(cabled):
    views = cabled(2, ((1, 1), (2, 1)))
    cut = [
        view.model_copy(
            update={
                "netdevs": tuple(
                    one.model_copy(update={"carrier": False}) if one.name == "enP2p1s0f1np1" else one
                    for one in view.netdevs
                ),
                "answers": view.answers[:1],
            }
        )
        for view in views
    ]
    (link,) = find_links(cut).links
    assert rails(link) == [("enp1s0f1np1", "enp1s0f1np1")]
    assert reasons(cut) == [
        "enP2p1s0f1np1 of spark1 has no signal, but the other half of its port has: half of the cable does not work.",
        "enP2p1s0f1np1 of spark2 has no signal, but the other half of its port has: half of the cable does not work.",
    ]


def test_an_empty_port_is_one_finding(netdev, spark):
    views = [spark(1, *(netdev(1, name, carrier=False) for name in ("enp1s0f0np0", "enP2p1s0f0np0")))]
    (reason,) = reasons(views)
    assert reason.startswith("enp1s0f0np0 and enP2p1s0f0np0 of spark1 have no signal")


def test_a_device_that_is_off_names_the_command(netdev, spark):
    (reason,) = reasons([spark(1, netdev(1, "enp1s0f1np1", up=False, carrier=False))])
    assert "switched off" in reason
    assert "ip link set enp1s0f1np1 up" in reason


def test_an_unknown_machine_is_reported(netdev, spark):
    answers = (NeighbourAnswer(netdev="enp1s0f1np1", method="arp", mac="02:00:00:00:00:99"),)
    (reason,) = reasons([spark(1, netdev(1, "enp1s0f1np1"), answers=answers)])
    assert "02:00:00:00:00:99, which is not one of the nodes" in reason


def test_a_cable_to_the_same_node_is_no_link(cabled):
    found = find_links(cabled(1, ((1, 0), (1, 1))))
    assert found.links == ()
    assert "the cable is a loop" in str(found.findings[0])


def test_a_machine_listed_twice_is_reported(netdev, spark):
    views = [spark(1, netdev(1, "enp1s0f1np1")), spark(2, netdev(1, "enp1s0f1np1"))]
    assert any("has the MAC" in reason for reason in reasons(views))
    assert find_links(views).links == ()


def test_a_bonded_rail_is_reported(netdev, spark):
    (reason,) = reasons([spark(1, netdev(1, "enp1s0f1np1", master="bond0"))])
    assert "belongs to bond0" in reason
