"""`init` and `fabric` on simulated Sparks: real sshd, real namespaces, real ARP and IPv6 neighbours, real rollback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest
from lab_fleet import lab_of

from sparkfleet.errors import NodeError
from sparkfleet.fabric.apply import apply_plan, find_helper
from sparkfleet.fabric.link_load import RailPair, Tcp
from sparkfleet.fabric.link_measurements import load_measurements, measured_links
from sparkfleet.fabric.measure import measure_pair, pairs_of
from sparkfleet.fabric.netplan import changes, plan_fabric
from sparkfleet.fabric.probe import look
from sparkfleet.fabric.topology import find_links
from sparkfleet.hostfacts.network.link import LinkProvenance
from sparkfleet.remote.open_channel import open_channel, open_channels
from sparkfleet.specs.inventory import RailEnd
from sparkfleet.specs.load import load_inventory, parse_inventory

pytestmark = pytest.mark.integration

LINK = "spark1-spark2"
FIRST, SECOND = "enp1s0f1np1", "enP2p1s0f1np1"


@pytest.fixture(scope="module")
def pair():
    with lab_of(2, shares=()) as lab:
        yield lab


@pytest.fixture
def lab(pair):
    yield pair
    pair.mend(LINK)
    for node in pair.nodes:
        pair.reboot(node.name)
        pair.heal(node.name)


@pytest.fixture
def sparkfleet(tmp_path):
    """sparkfleet("init", …) → the finished process, as a user would have it."""

    def run(*argv, expect=0):
        done = subprocess.run(
            [sys.executable, "-m", "sparkfleet", *map(str, argv)],
            env={**os.environ, "SPARKFLEET_HOME": str(tmp_path / "state")},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    return run


def enrol(sparkfleet, lab):
    hosts = [node.address for node in lab.nodes]
    user, key = lab.nodes[0].user, lab.key_file
    keys = [
        part
        for node in parse_inventory(lab.inventory()).nodes.values()
        for part in ("--host-key", node.host_key)
    ]
    return sparkfleet("init", *hosts, *keys, "-u", user, "--identity-file", key, "--fleet", lab.name, "--yes")


# --- init -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "topology", "cables"), [(2, "direct", 1), (3, "ring", 3), (4, "ring", 4), (4, "switch", 4)]
)
def test_init_finds_all_nodes_and_both_rails_of_each_cable(sparkfleet, tmp_path, nodes, topology, cables):
    with lab_of(nodes, shares=(), topology=topology) as lab:
        said = enrol(sparkfleet, lab).stdout
        written, true = load_inventory(tmp_path / "inventory.yaml"), parse_inventory(lab.inventory())
    assert written.nodes == true.nodes
    assert {frozenset(link.nodes) for link in written.links} == {frozenset(link.nodes) for link in true.links}
    ends = {
        (*link.nodes, end.address, end.rdma) for link in written.links for rail in link.rails for end in rail
    }
    assert len(written.links) == cables
    assert all(len(link.rails) == 2 for link in written.links)
    assert len(ends) == sum(len(rail) for link in true.links for rail in link.rails)
    assert all((link.switch is not None) == (topology == "switch") for link in written.links)
    assert "found by arp" in said


def bare(lab):
    """As a Spark comes: no addresses on the rails, MTU 1500, and Linux' own ARP."""
    for node in lab.nodes:
        for netdev in (FIRST, SECOND):
            lab.exec(node.name, ["ip", "addr", "flush", "dev", netdev], root=True)
            lab.exec(node.name, ["ip", "link", "set", "dev", netdev, "mtu", "1500"], root=True)
            settings = f"cd /proc/sys/net/ipv4/conf/{netdev} && echo 0 > arp_ignore && echo 0 > arp_announce"
            lab.exec(node.name, ["sh", "-c", settings], root=True)


def seen(lab):
    async def find():
        channels = open_channels(parse_inventory(lab.inventory()))
        try:
            views = await look(channels)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels.values()))
        return views, find_links(views)

    return asyncio.run(find())


def test_rails_without_addresses_are_found_by_arping(lab, sparkfleet, tmp_path):
    bare(lab)
    said = enrol(sparkfleet, lab).stdout
    assert said.count("found by arp") == 2
    assert "no address on spark1 and spark2" in said
    assert load_inventory(tmp_path / "inventory.yaml").links == ()
    assert "`sparkfleet fabric plan`" in (tmp_path / "inventory.yaml").read_text()


def test_rails_with_link_local_addresses_are_found_by_an_all_nodes_ping(lab):
    bare(lab)
    for number, node in enumerate(lab.nodes, start=1):
        for half, netdev in enumerate((FIRST, SECOND)):
            address = f"fe80::{half}:{number}/64"
            done = lab.exec(
                node.name, ["ip", "-6", "addr", "add", address, "dev", netdev, "nodad"], root=True
            )
            assert done.returncode == 0, done.stderr
    _, found = seen(lab)
    assert [rail.methods for link in found.links for rail in link.rails] == [("ipv6",), ("ipv6",)]


def test_a_cut_rail_is_seen(lab):
    lab.cut(LINK, 1)
    _, found = seen(lab)
    (link,) = found.links
    assert [rail.ends[0].netdev.name for rail in link.rails] == [FIRST]
    assert any(
        SECOND in finding.netdev and "half of the cable does not work" in finding.what
        for finding in found.findings
    )


# --- measuring --------------------------------------------------------------------------------------------------------


def test_measuring_proves_the_way_and_is_kept_for_the_planner(lab, sparkfleet, tmp_path):
    (tmp_path / "inventory.yaml").write_text(lab.inventory())
    shown = json.loads(sparkfleet("fabric", "measure", "--seconds", "1", "--json").stdout)
    (link,) = shown["links"]
    assert link["proof"]["holds"]
    assert [rail["method"] for rail in link["rails"]] == ["ib_write_bw", "ib_write_bw"]
    (kept,) = load_measurements(tmp_path / "state" / lab.name / "links.json")
    assert kept.nodes == ("spark1", "spark2")
    (facts,) = measured_links(load_inventory(tmp_path / "inventory.yaml"), [kept])
    assert facts.provenance is LinkProvenance.MEASURED


def test_a_rail_that_is_down_is_named_and_its_link_keeps_no_number(lab, sparkfleet, tmp_path):
    (tmp_path / "inventory.yaml").write_text(lab.inventory())
    lab.cut(LINK, 1)
    done = sparkfleet("fabric", "measure", "--seconds", "1", expect=1)
    assert f"not measured: rail {SECOND}: " in done.stdout
    assert "state is Down" in done.stdout
    assert not (tmp_path / "state" / lab.name / "links.json").exists()


def measured_by_tcp(lab, monkeypatch, *, beside=False):
    """The cable, measured without perftest; `beside` it, somebody sends over the management network."""

    async def no_tools(channel):
        return False

    async def measure():
        inventory = parse_inventory(lab.inventory())
        channels = open_channels(inventory)
        ends = tuple(RailEnd(netdev="enP7s7", address=f"{node.address}/24") for node in lab.nodes)
        lan = RailPair(tuple(channels.values()), ends)
        try:
            async with asyncio.TaskGroup() as group:
                measured = group.create_task(measure_pair(pairs_of(inventory)[0], channels, seconds=0.5))
                other = group.create_task(Tcp().bandwidth(lan, 10.0)) if beside else None
                found = await measured
                if other is not None:
                    other.cancel()
            return found
        finally:
            await asyncio.gather(*(channel.close() for channel in channels.values()))

    monkeypatch.setattr("sparkfleet.fabric.measure.has_perftest", no_tools)
    return asyncio.run(measure())


def leftovers(lab):
    return [
        line
        for node in lab.nodes
        for line in lab.exec(node.name, ["ps", "-eo", "args"]).stdout.splitlines()
        if "ib_write" in line or "Loads a rail" in line
    ]


def test_without_perftest_tcp_is_measured_and_said_to_be_that(lab, monkeypatch):
    found = measured_by_tcp(lab, monkeypatch)
    assert found.proof.holds, found.proof.said
    assert {rail.method for rail in found.rails} == {Tcp.method}
    assert all(rail.gb_per_s > 0.05 and rail.latency_us > 0 for rail in found.rails)
    assert leftovers(lab) == []


def test_bytes_that_take_the_lan_are_found_out(lab, monkeypatch):
    found = measured_by_tcp(lab, monkeypatch, beside=True)
    assert not found.proof.holds
    assert "bytes went over enP7s7, which is not a rail" in found.proof.said
    assert leftovers(lab) == []


# --- apply and rollback -----------------------------------------------------------------------------------------------


def permit(lab, said):
    """Do as a person would: run the commands that were printed, as root."""
    for node in lab.nodes:
        commands = [line.strip() for line in said.splitlines() if line.startswith("  ") and "sudo " in line]
        lab.exec(node.name, ["sh", "-c", "\n".join(dict.fromkeys(commands))], root=True)


def test_apply_asks_for_permission_and_then_makes_the_rails(lab, sparkfleet, tmp_path):
    bare(lab)
    (tmp_path / "inventory.yaml").write_text(lab.inventory())
    planned = sparkfleet("fabric", "plan", expect=2).stdout
    assert f"{FIRST}: address none → 192.168.100.10/24" in planned
    refused = sparkfleet("fabric", "apply", "--yes", expect=1).stderr
    assert "NOPASSWD: /usr/local/sbin/sparkfleet-rails" in refused
    permit(lab, refused)
    assert "Kept" in sparkfleet("fabric", "apply", "--yes").stdout
    assert "no change" in sparkfleet("fabric", "plan").stdout
    assert len(seen(lab)[1].links[0].rails) == 2
    # The permission is for this program alone.
    refused = lab.exec("spark1", ["sudo", "-n", "id"])
    assert refused.returncode != 0


async def change(lab, reopen, rollback_s):
    inventory = parse_inventory(lab.inventory())
    channels = open_channels(inventory)
    try:
        views = await look(channels)
        plan = plan_fabric(find_links(views), views)
        helpers = {name: await find_helper(channel) for name, channel in channels.items()}

        async def again(node):
            await reopen(node)
            return open_channel(node, inventory.nodes[node])

        return plan, await apply_plan(plan, helpers, channels, again, nodes=helpers, rollback_s=rollback_s)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))


def pending(lab, plan):
    views, _ = seen(lab)
    return {view.node: changes(plan.of(view.node), view) for view in views}


def prepared(lab, sparkfleet, tmp_path):
    bare(lab)
    (tmp_path / "inventory.yaml").write_text(lab.inventory())
    permit(lab, sparkfleet("fabric", "apply", "--yes", expect=1).stderr)


def test_a_node_that_is_not_reached_anew_heals_itself(lab, sparkfleet, tmp_path):
    prepared(lab, sparkfleet, tmp_path)

    async def lost(node):
        if node == "spark2":
            raise NodeError("spark2: no answer")

    # Long enough that spark1 is called back before it reverts by itself.
    plan, applied = asyncio.run(change(lab, lost, rollback_s=8))
    assert not applied.kept
    assert applied.problems == ("spark2: no answer. It reverts its change by itself.",)
    assert pending(lab, plan)["spark1"] != ()
    # The helper holds its lock until it is over: `flock` waits for that, not for a time.
    lock = "flock /run/sparkfleet-rails/*/lock true"
    assert lab.exec("spark2", ["sh", "-c", lock], root=True).returncode == 0
    assert pending(lab, plan)["spark2"] != ()


def test_rails_that_do_not_carry_the_packets_are_taken_back_everywhere(lab, sparkfleet, tmp_path):
    prepared(lab, sparkfleet, tmp_path)

    async def cut(node):
        lab.cut(LINK, 1)

    plan, applied = asyncio.run(change(lab, cut, rollback_s=60))
    assert not applied.kept
    assert any(f"{SECOND} of spark1 does not reach 192.168.101.11" in said for said in applied.problems)
    assert all(waiting != () for waiting in pending(lab, plan).values())
