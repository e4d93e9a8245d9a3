import json
from types import SimpleNamespace

import pytest
from fake_channel import FakeChannel
from open_client import OpenClient

from sparkfleet.fabric.apply import FabricOutcome, Helper, NotPermitted
from sparkfleet.fabric.firewall import ADDRESSES
from sparkfleet.fabric.link_measurements import (
    LinkMeasurement,
    RailMeasurement,
    TransportProof,
    UnmeasuredLink,
)
from sparkfleet.fabric.port_scan import NeighbourAnswer, PortScan
from sparkfleet.fleet import node_access
from sparkfleet.fleet.setup import rails
from sparkfleet.hostfacts.network.listening_sockets import ReadSockets
from sparkfleet.hostfacts.network.netdev import NetAddress, Netdev

RAIL = "enp1s0f1np1"


def view(number, address=None, mtu=1500):
    rail = Netdev(
        name=RAIL,
        mac=f"02:00:00:00:00:0{number}",
        mtu=mtu,
        up=True,
        carrier=True,
        state="UP",
        addresses=(NetAddress(address=address),) if address else (),
    )
    answers = (NeighbourAnswer(netdev=RAIL, method="arp", mac=f"02:00:00:00:00:0{3 - number}"),)
    return PortScan(node=f"spark{number}", netdevs=(rail,), answers=answers)


@pytest.fixture
def fleet(monkeypatch):
    """Two Sparks; fleet["views"] is what is seen, ["helpers"] what is allowed, and ["applied"] the result."""
    state = {"views": (view(1), view(2)), "helpers": {}, "applied": FabricOutcome(kept=True, problems=())}

    async def look(channels):
        return state["views"]

    async def find_helper(channel):
        if error := state["helpers"].get(channel.node):
            raise error
        others = state.get("others", {})
        return Helper(
            node=channel.node, argv=("rails",), backend=state.get("backend", "netplan"), own="", others=others
        )

    async def apply_plan(*_, **__):
        return state["applied"]

    def open_channels(inventory):
        return {name: FakeChannel(name) for name in inventory.nodes}

    for fake in (look, find_helper, apply_plan):
        monkeypatch.setattr(rails, fake.__name__, fake)
    monkeypatch.setattr(node_access, "open_channels", open_channels)
    return state


def test_plan_shows_the_file_and_what_would_change(sparkfleet, fleet, two_sparks):
    fleet["others"] = {"/etc/netplan/40-cx7.yaml": (RAIL,)}
    code, out, _ = sparkfleet("fabric", "plan", "-i", two_sparks)
    assert code == 2
    assert f"{RAIL}: address none → 192.168.100.10/24" in out
    assert "+      addresses: [192.168.100.11/24]" in out
    assert "/etc/netplan/40-cx7.yaml also configures enp1s0f1np1" in out


def test_plan_for_programs(sparkfleet, fleet, two_sparks):
    fleet["helpers"] = {"spark2": NotPermitted("spark2: nobody may.", means="", do="")}
    code, out, _ = sparkfleet("fabric", "plan", "--json", "-i", two_sparks)
    told = json.loads(out)
    assert (code, told["version"], [link["nodes"] for link in told["links"]]) == (
        2,
        1,
        [["spark1", "spark2"]],
    )
    first, second = told["nodes"]["spark1"], told["nodes"]["spark2"]
    assert first["ports"][0]["address"] == "192.168.100.10/24"
    assert any("address none" in change for change in first["changes"])
    assert (first["not_permitted"], second["not_permitted"]) == ("", "spark2: nobody may.")


def test_nodes_that_do_not_change_share_a_line(sparkfleet, fleet, two_sparks):
    fleet["views"] = (view(1, "192.168.100.1/24", 9000), view(2, "192.168.100.2/24", 9000))
    fleet["backend"] = "ip"
    code, out, _ = sparkfleet("fabric", "plan", "-i", two_sparks)
    assert code == 0
    assert [line for line in out.splitlines() if "no change" in line] == ["spark1, spark2  no change"]


@pytest.mark.parametrize(
    "given",
    [
        {"others": {"/etc/netplan/40-cx7.yaml": (RAIL,)}},
        {"backend": "ip"},
        {"helpers": {f"spark{n}": NotPermitted("nobody may.", means="", do="") for n in (1, 2)}},
    ],
)
def test_nothing_to_do(sparkfleet, fleet, two_sparks, given):
    fleet["views"] = (view(1, "192.168.100.1/24", 9000), view(2, "192.168.100.2/24", 9000))
    fleet.update(given)
    code, out, _ = sparkfleet("fabric", "apply", "-i", two_sparks)
    assert (code, "No change: every rail has its address." in out) == (0, True)


def test_addresses_that_no_netplan_file_has_are_pending(sparkfleet, fleet, two_sparks):
    """Set by hand with `ip`, they were "no change", and lost by the next reboot."""
    fleet["views"] = (view(1, "192.168.100.1/24", 9000), view(2, "192.168.100.2/24", 9000))
    code, out, _ = sparkfleet("fabric", "plan", "-i", two_sparks)
    assert code == 2
    assert f"{RAIL}: 192.168.100.1/24 is not in a netplan file, and is lost when the node reboots" in out
    assert "Kept" in sparkfleet("fabric", "apply", "--yes", "-i", two_sparks)[1]


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_without_a_cable_no_rail_is_said_to_be_right(sparkfleet, fleet, two_sparks, verb):
    fleet["views"] = tuple(PortScan(node=f"spark{n}", netdevs=(), answers=()) for n in (1, 2))
    code, out, _ = sparkfleet("fabric", verb, "-i", two_sparks)
    assert code == 0
    assert "No cable" in out
    assert "no change" not in out.lower()


def test_apply_asks(sparkfleet, fleet, two_sparks):
    code, _, err = sparkfleet("fabric", "apply", "-i", two_sparks)
    assert code == 1
    assert "Nothing was changed: this needs a confirmation" in err
    assert sparkfleet("fabric", "apply", "--yes", "-i", two_sparks)[0] == 0


class Controller(OpenClient):
    """Has one group over both nodes and one on a single node."""

    async def fleet(self):
        def served(name, *nodes):
            ranks = tuple(SimpleNamespace(node=node) for node in nodes)
            return SimpleNamespace(name=name, groups=(SimpleNamespace(ranks=ranks),))

        others = served("others", "spark3", "spark4")
        return SimpleNamespace(
            deployments=(served("big", "spark1", "spark2"), served("small", "spark1"), others)
        )


def test_apply_names_what_serves_over_the_rails(sparkfleet, fleet, two_sparks, monkeypatch):
    """Links go down for a moment, and the question did not name the engines that end with them."""

    async def find_controller(session):
        return Controller()

    monkeypatch.setattr("sparkfleet.fleet.session.Session.find_controller", find_controller)
    code, out, err = sparkfleet("fabric", "apply", "-i", two_sparks)
    assert (code, "needs a confirmation" in err) == (1, True)
    assert "big: engines speak over these rails" in out, (
        "neither small, on one node, nor others, which do not change"
    )


def test_what_was_taken_back_is_an_error_with_the_reasons(sparkfleet, fleet, two_sparks):
    fleet["applied"] = FabricOutcome(kept=False, problems=("spark2: no answer.",))
    code, _, err = sparkfleet("fabric", "apply", "--yes", "-i", two_sparks)
    assert code == 1
    assert "was undone" in err
    assert "spark2: no answer." in err
    assert "Check the cables" in err


def test_a_rail_that_another_netplan_file_configures_is_named_when_it_fails(sparkfleet, fleet, two_sparks):
    fleet["others"] = {"/etc/netplan/90-own.yaml": (RAIL,)}
    fleet["applied"] = FabricOutcome(kept=False, problems=("no packets.",))
    err = sparkfleet("fabric", "apply", "--yes", "-i", two_sparks)[2]
    assert f"spark2: /etc/netplan/90-own.yaml also configures {RAIL}" in err


def test_nobody_looks_at_cables_for_a_node_that_refused_the_change(sparkfleet, fleet, two_sparks):
    fleet["applied"] = FabricOutcome(kept=False, problems=("spark1: refused.",), checked=False)
    assert "cables" not in sparkfleet("fabric", "apply", "--yes", "-i", two_sparks)[2]


def test_permission_is_asked_for_all_nodes_at_once(sparkfleet, fleet, two_sparks):
    fleet["helpers"] = {
        name: NotPermitted(f"{name}: u may not.", means="One program.", do=f"Run on {name}")
        for name in ("spark1", "spark2")
    }
    code, out, err = sparkfleet("fabric", "apply", "--yes", "-i", two_sparks)
    assert code == 1
    assert "Run on spark1" in err
    assert "Run on spark2" in err
    assert "addresses: [192.168.100.10/24]" in out


@pytest.mark.parametrize(("holds", "expected"), [(True, 0), (False, 1)])
def test_measure(sparkfleet, fleet, two_sparks, monkeypatch, holds, expected):
    rail = RailMeasurement(netdev=RAIL, method="ib_write_bw", gb_per_s=12.25, latency_us=1.5)
    proof = TransportProof(moved={}, holds=holds, said="moved on the rails")

    async def measure_links(*_, **__):
        return (LinkMeasurement(nodes=("spark1", "spark2"), rails=(rail,), proof=proof, when=1.0),), ()

    monkeypatch.setattr(rails, "measure_links", measure_links)
    code, out, _ = sparkfleet("fabric", "measure", "-i", two_sparks)
    assert code == expected
    assert "12.25 GB/s  1.5 µs  by ib_write_bw" in out


def test_a_link_that_cannot_be_measured_is_shown_with_its_rail_and_its_remedy(
    sparkfleet, fleet, two_sparks, monkeypatch
):
    lost = UnmeasuredLink(
        nodes=("spark1", "spark2"), what=f"rail {RAIL}: spark2: no address", do="Plug it in"
    )

    async def measure_links(*_, **__):
        return (), (lost,)

    monkeypatch.setattr(rails, "measure_links", measure_links)
    code, out, _ = sparkfleet("fabric", "measure", "-i", two_sparks)
    assert code == 1
    assert out.splitlines() == [
        "Measuring 1 pair of nodes, 3 s of load each; pairs without a common node at once.",
        "spark1 – spark2",
        f"  not measured: rail {RAIL}: spark2: no address",
        "  Plug it in",
        "Next: `sparkfleet doctor` shows which cable, port or address is at fault.",
    ]
    shown = json.loads(sparkfleet("fabric", "measure", "--json", "-i", two_sparks)[1])
    assert (shown["links"], [one["what"] for one in shown["not_measured"]]) == ([], [lost.what])


ADDRESS = (
    '[{{"ifname": "enP7s7", "addr_info": [{{"local": "10.0.0.{n}", "prefixlen": 24, "family": "inet"}}]}}]'
)


@pytest.fixture
def nodes(fleet, monkeypatch):
    """Two Sparks that report one address each, and no listening socket."""

    def open_channels(inventory):
        return {
            name: FakeChannel(name, {ADDRESSES: ADDRESS.format(n=name[-1]), ReadSockets.argv: ""})
            for name in inventory.nodes
        }

    monkeypatch.setattr(node_access, "open_channels", open_channels)


def test_firewall_shows_the_rules_of_every_node(sparkfleet, nodes, two_sparks):
    code, out, _ = sparkfleet("fabric", "firewall", "-i", two_sparks)
    assert code == 2
    first, second = out.split("\nspark2  ")
    assert "ip saddr { 10.0.0.2 } accept" in first
    assert "ip saddr { 10.0.0.1 } accept" in second


def test_firewall_for_programs(sparkfleet, nodes, fleet, two_sparks):
    fleet["helpers"] = {"spark2": NotPermitted("spark2: u may not.", means="", do="")}
    code, out, _ = sparkfleet("fabric", "firewall", "--json", "-i", two_sparks)
    shown = json.loads(out)["nodes"]
    assert code == 2
    assert (shown["spark1"]["differs"], shown["spark1"]["not_permitted"]) == (True, "")
    assert shown["spark2"]["not_permitted"] == "spark2: u may not."


def test_firewall_needs_nftables_and_addresses(sparkfleet, nodes, two_sparks, monkeypatch):
    code, _, err = sparkfleet("fabric", "firewall", "--apply", "--yes", "-i", two_sparks)
    assert (code, "spark1, spark2: nftables are not installed." in err) == (1, True)
    monkeypatch.setattr(
        node_access,
        "open_channels",
        lambda inventory: {name: FakeChannel(name, {ADDRESSES: "[]"}) for name in inventory.nodes},
    )
    code, _, err = sparkfleet("fabric", "firewall", "-i", two_sparks)
    assert (code, "The addresses of spark1, spark2 could not be read." in err) == (1, True)


def test_firewall_cannot_be_loaded_and_removed_at_once(sparkfleet, two_sparks):
    code, _, err = sparkfleet("fabric", "firewall", "--apply", "--remove", "-i", two_sparks)
    assert (code, "exclude each other" in err) == (1, True)
