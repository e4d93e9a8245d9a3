import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError, NodeError
from sparkfleet.fabric.probe import all_nodes_ping, look, management_of, replies
from sparkfleet.fabric.topology import find_links
from sparkfleet.hostfacts.network.routes import RouteEntry
from sparkfleet.remote.channel import Completed

RAIL = "enp1s0f1np1"


def netdevs(number, *, rail_address=None, link_local=True):
    local = [{"local": f"fe80::{number}", "prefixlen": 64, "scope": "link"}] if link_local else []
    given = [{"local": rail_address, "prefixlen": 24}] if rail_address else []
    flags = ["UP", "LOWER_UP"]
    return json.dumps(
        [
            {"ifname": "enP7s7", "flags": flags, "mtu": 1500, "address": f"02:00:00:00:01:0{number}",
             "addr_info": [{"local": f"192.168.1.1{number}", "prefixlen": 24}]},
            {"ifname": RAIL, "flags": flags, "mtu": 1500, "address": f"02:00:00:00:02:0{number}",
             "addr_info": local + given},
        ]
    )  # fmt: skip


def answers(number, **more):
    return {
        ("ip", "-j", "-d", "addr", "show"): netdevs(number, **more),
        ("printenv", "SSH_CONNECTION"): f"192.168.1.5 40000 192.168.1.1{number} 22\n",
        ("ip", "-j", "-4", "route", "show"): '[{"dst": "192.168.1.0/24", "dev": "enP7s7"}]',
    }


async def found_by(batched, one, other):
    return find_links(await look({"a": batched("a", one), "b": batched("b", other)}))


async def test_a_fresh_spark_is_found_by_an_all_nodes_ping(batched):
    def pong(other):
        return (f"64 bytes from fe80::{other}%{RAIL}: icmp_seq=1 ttl=64 time=0.1 ms\n", 0)

    ping = all_nodes_ping(RAIL)
    one, other = answers(1) | {ping: pong(2)}, answers(2) | {ping: pong(1)}
    (link,) = (await found_by(batched, one, other)).links
    assert link.rails[0].methods == ("ipv6",)


async def test_without_link_local_addresses_arping_asks_for_the_management_address(batched):
    reply = ("Unicast reply from 192.168.1.12 [02:00:00:00:02:02]  0.572ms\n", 1)
    asked = ("arping", "-D", "-c", "2", "-w", "1", "-I", RAIL, "192.168.1.12")
    one = answers(1, link_local=False) | {asked: reply}
    (link,) = (await found_by(batched, one, answers(2, link_local=False))).links
    assert link.rails[0].methods == ("arp",)


async def test_an_addressed_rail_is_pinged_and_the_neighbour_table_names_the_mac(batched):
    table = [{"dst": "10.0.0.2", "dev": RAIL, "lladdr": "02:00:00:00:02:02", "state": ["REACHABLE"]}]
    one = answers(1, link_local=False, rail_address="10.0.0.1") | {
        ("ip", "-j", "neigh", "show"): json.dumps(table)
    }
    (link,) = (await found_by(batched, one, answers(2, link_local=False, rail_address="10.0.0.2"))).links
    assert link.rails[0].methods == ("arp",)


async def test_a_cable_that_was_there_last_week_is_not_found(batched):
    table = [{"dst": "10.0.0.2", "dev": RAIL, "lladdr": "02:00:00:00:02:02", "state": ["STALE"]}]
    one = answers(1, link_local=False, rail_address="10.0.0.1") | {
        ("ip", "-j", "neigh", "show"): json.dumps(table)
    }
    found = await found_by(batched, one, answers(2, link_local=False, rail_address="10.0.0.2"))
    assert found.links == ()


async def test_tools_that_are_missing_are_no_error(batched):
    found = await found_by(batched, answers(1), answers(2))
    assert found.links == ()
    assert "no node answered on it" in str(found.findings[0])


async def test_a_node_without_ip_is_an_error(batched):
    with pytest.raises(NodeError):
        await look({"a": batched("a", {})})


async def test_a_node_that_prints_a_motd_is_an_error(batched):
    with pytest.raises(FactError):
        await look({"a": batched("a", {("ip", "-j", "-d", "addr", "show"): "Welcome!"})})


def completed(stdout):
    return Completed(argv=("printenv",), exit_code=0, stdout=stdout, stderr="")


def test_the_management_netdev_is_that_of_the_connection(netdev):
    lan, rail = netdev(1, "enP7s7", "192.168.1.11/24"), netdev(1, RAIL, "10.0.0.1/24")
    routes = (RouteEntry(to="0.0.0.0/0", netdev="wlP9s9"),)
    assert management_of([lan, rail], routes, completed("10.0.0.9 1 10.0.0.1 22\n")) == RAIL
    assert management_of([lan, rail], routes, completed("nonsense")) == "wlP9s9"
    assert management_of([lan, rail], routes, completed("a 1 nonsense 22")) == "wlP9s9"
    assert management_of([lan, rail], (), NodeError("printenv was not found")) == ""


@given(st.text() | st.lists(st.sampled_from(["64 bytes from fe80::", "1", ":", "%", "\n"])).map("".join))
def test_any_ping_output_gives_addresses_or_nothing(output):
    assert all(address.startswith("fe80:") for address in replies(output))
