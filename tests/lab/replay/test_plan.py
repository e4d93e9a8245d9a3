"""A captured fleet as a lab: what the parsers read of a node's outputs is what they read of the replay's."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from batch_fake import BatchFake
from sparks import INVENTORY, Spark

from sparkfleet.doctor.collect import FACTS, netdevs_of, read_node, read_raw
from sparkfleet.errors import NodeError
from sparkfleet.fleet.bundle.collect import MORE
from sparkfleet.fleet.bundle.redact import Redactor
from sparkfleet.hostfacts.gpu import ReadGpuState
from sparkfleet.hostfacts.network.netdev import ReadNetdevs
from sparkfleet.lab.errors import LabError
from sparkfleet.lab.layout import Layout, Topology, make_layout
from sparkfleet.lab.machine import COMMANDS, REPLAYED
from sparkfleet.lab.replay.bundle import (
    FOLDER,
    FORMAT,
    CapturedAnswer,
    CapturedFleet,
    CapturedLink,
    CapturedNode,
    read_bundle,
)
from sparkfleet.lab.replay.plan import NETDEVS_ARGV, ReplayPlan
from sparkfleet.remote.channel import Completed
from sparkfleet.specs.load import parse_inventory

RAIL = (("enp1s0f1np1", "<subnet-2>.10/24"), ("enp1s0f1np1", "<subnet-2>.11/24"))
SECOND = (("enP2p1s0f1np1", "<subnet-3>.10/24"), ("enP2p1s0f1np1", "<subnet-3>.11/24"))
BOTH = ("<node-1>", "<node-2>")


def answer(argv: tuple[str, ...], stdout: str = "", **more: Any) -> CapturedAnswer:
    fields = {"exit_code": 0, "stderr": "", "missing": False, "late": False} | more
    return CapturedAnswer(argv=argv, stdout=stdout, **fields)


def node(name: str, *answers: CapturedAnswer, address: str = "<subnet-1>.21") -> CapturedNode:
    return CapturedNode(name, address, "<user-1>", answers)


def fleet(*links: CapturedLink, nodes: tuple[CapturedNode, ...] = (), head: str = "") -> CapturedFleet:
    two = (node("<node-1>"), node("<node-2>", address="<subnet-1>.22"))
    return CapturedFleet("0.1.0", head, nodes or two, links)


def layout(plan: ReplayPlan) -> Layout:
    return make_layout("x", len(plan.numbers), Topology.CAPTURED, 7, plan.cabling)


async def bundle_of(sparks: list[Spark], path: Path) -> Path:
    """A bundle of two fake Sparks, redacted as a real one is."""
    spec = parse_inventory(INVENTORY, "inventory.yaml")
    redactor = Redactor((), {"node": [*spec.nodes]})
    parts: dict[str, Any] = {
        "versions.json": {"version": FORMAT},
        "inventory.json": spec.model_dump(mode="json"),
    }
    for spark in sparks:
        raw = await read_raw(spark.channel(), spec.nodes[spark.name], netdevs_of(spec, spark.name), more=MORE)
        parts[f"nodes/{spark.name}/facts.json"] = [one.model_dump(mode="json") for one in raw]
    with tarfile.open(path, "w:gz") as archive:
        for name, value in parts.items():
            content = json.dumps(redactor.document(value)).encode()
            entry = tarfile.TarInfo(f"{FOLDER}/{redactor.text(name)}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def broken(sparks: list[Spark]) -> None:
    """An older driver, a rail without a carrier, another with a small MTU, a program that hangs."""
    sparks[1].change(ReadGpuState.argv, "580.", "570.")
    sparks[1].netdevs["enP2p1s0f1np1"]["flags"] = ["BROADCAST", "MULTICAST", "UP"]
    sparks[0].netdevs["enp1s0f1np1"]["mtu"] = 1500
    sparks[0].answers["docker", "info"] = NodeError("docker did not end within 20 s")


async def test_the_same_facts_are_read_of_the_replay(tmp_path: Path) -> None:
    sparks = [Spark(1), Spark(2)]
    broken(sparks)
    plan = ReplayPlan(read_bundle(await bundle_of(sparks, tmp_path / "b.tar.gz")))
    lab = layout(plan)
    spec = parse_inventory(INVENTORY, "inventory.yaml")
    assert lab.cables[0].name == "spark1-spark2"
    assert [rail.ends[1].address for rail in lab.cables[0].rails] == [
        "192.168.100.12/24",
        "192.168.101.12/24",
    ]
    for spark in sparks:
        before = await read_node(spark.channel(), spec.nodes[spark.name], netdevs_of(spec, spark.name))
        shown = plan.nodes(lab)[spark.name]
        replayed = BatchFake(
            spark.name, {one.argv: response(one) for one in shown.answers if not one.missing}
        )
        after = await read_node(replayed, spec.nodes[spark.name], netdevs_of(spec, spark.name))
        # Of these redaction has removed a part; keys are the lab's own.
        removed = {"clock", "host_keys", "netdevs", "identity", "gids", "rdma_devices", "unknown"}
        assert before.model_dump(exclude=removed) == after.model_dump(exclude=removed)
        assert before.unknown.keys() | {"host_keys", "clock"} == after.unknown.keys() | {"host_keys", "clock"}
        assert [gid.ipv4 and gid.ipv4.partition(".")[0] for gid in before.gids] == ["192"] * 4
        assert [(gid.index, gid.ipv4) for gid in after.gids] == [(gid.index, gid.ipv4) for gid in before.gids]
        for one, other in zip(before.netdevs, after.netdevs, strict=True):
            assert (one.name, one.mtu, one.carrier) == (other.name, other.mtu, other.carrier)
        (management,) = (one for one in after.netdevs if one.name == "enP7s7")
        assert management.addresses[0].address == f"10.77.7.{10 + spark.number}/24"
        assert management.mac == f"4c:bb:47:07:0{spark.number}:16"
    one, two = plan.nodes(lab).values()
    assert two.knobs["driver"].startswith("570.")
    assert (one.knobs.get("driver", "580")[:4], two.dark, one.dark) == (
        "580.",
        {"enP2p1s0f1np1"},
        frozenset(),
    )
    assert one.mtu["enp1s0f1np1"] == 1500
    assert one.knobs["machine_id"] != two.knobs["machine_id"]


def response(one: CapturedAnswer) -> Completed | NodeError:
    if one.late:
        return NodeError(f"{one.argv[0]} did not end within 20 s")
    return Completed(argv=one.argv, exit_code=one.exit_code, stdout=one.stdout, stderr=one.stderr)


def test_every_command_of_a_bundle_can_be_replayed() -> None:
    for argv in (*(fact.argv for _, fact in FACTS), *(one.argv for one in MORE), ("ethtool",), ("grep",)):
        assert argv[0] in (*COMMANDS, *REPLAYED), argv[0]
    assert ReadNetdevs.argv == NETDEVS_ARGV


def test_programs_that_the_lab_does_not_know_are_named_and_never_replaced() -> None:
    odd = (
        answer(("/home/<user-1>/x/python", "-c", "1")),
        answer(("sshd",)),
        answer(("nsenter", "\x1b[2J")),
        answer(("id",)),
    )
    plan = ReplayPlan(fleet(nodes=(node("<node-1>", *odd),)))
    assert plan.replayed == {"spark1": 1}
    assert [one.argv for one in plan.nodes(layout(plan))["spark1"].answers] == [("id",)]
    assert sorted(plan.notes()) == [
        "spark1: not replayed: /home/<user-1>/x/python -c 1: the lab has no such program",
        "spark1: not replayed: nsenter ?[2J: the lab has no such program",
        "spark1: not replayed: sshd: the lab has no such program",
    ]


def test_keys_are_the_nodes_own_unless_two_had_the_same() -> None:
    line = "/etc/ssh/ssh_host_ed25519_key.pub:ssh-ed25519 <key-{}> root@<host-1>\n"
    nodes = tuple(
        node(f"<node-{number}>", answer(("grep", "key"), line.format(key)), address=f"<subnet-1>.{number}")
        for number, key in ((1, 1), (2, 2), (3, 1))
    )
    plan = ReplayPlan(fleet(nodes=nodes))
    shown = plan.nodes(layout(plan))
    assert [one.answers for one in shown.values()] == [(), (), ()]
    assert [dict(one.knobs) for one in shown.values()] == [{}, {}, {"host_key": "spark1"}]
    assert "keys are not in a bundle" in plan.notes()[0]


def test_characters_that_a_terminal_acts_on_are_not_printed() -> None:
    plan = ReplayPlan(
        fleet(nodes=(node("<node-1>", answer(("id",), "a\x1b]0;x\x07\tb\n", stderr="\x9b2J")),))
    )
    (one,) = plan.nodes(layout(plan))["spark1"].answers
    assert (one.stdout, one.stderr) == ("a?]0;x?\tb\n", "?2J")


def test_missing_programs_are_hidden_but_for_those_that_a_node_needs() -> None:
    gone = (answer(("docker", "info"), missing=True), answer(("python3", "-c", "1"), missing=True))
    plan = ReplayPlan(fleet(nodes=(node("<node-1>", *gone),)))
    assert plan.nodes(layout(plan))["spark1"].missing == ("docker",)


def test_a_switch_a_second_cable_and_a_head() -> None:
    links = (
        CapturedLink(("<node-1>",), "sw-1", (RAIL[:1],)),
        CapturedLink(("<node-2>",), "sw-1", (RAIL[1:],)),
        CapturedLink(BOTH, "", ((("enp1s0f0np0", "<subnet-4>.1/30"), ("enp1s0f0np0", "<subnet-4>.2/30")),)),
        CapturedLink(BOTH, "", (SECOND,)),
    )
    plan = ReplayPlan(fleet(*links, head="<node-2>"))
    made = layout(plan)
    assert [cable.name for cable in made.cables] == [
        "spark1-sw-1",
        "spark2-sw-1",
        "spark1-spark2",
        "spark1-spark2-2",
    ]
    assert [cable.switch for cable in made.cables] == ["sw-1", "sw-1", None, None]
    assert made.switch_bridges == {made.cables[0].rails[0].bridge} == {made.cables[1].rails[0].bridge}
    assert len({rail.bridge for cable in made.cables for rail in cable.rails}) == 3
    assert made.cables[2].rails[0].ends[1].address.endswith(".2/30")
    assert plan.head == 2


@pytest.mark.parametrize(
    ("rail", "why"),
    [
        ((("eth0", "<subnet-2>.1/24"), ("eth0", "<subnet-2>.2/24")), "none of a Spark's ConnectX-7"),
        ((("enp1s0f1np1; reboot", "<subnet-2>.1/24"), RAIL[1]), "none of a Spark's ConnectX-7"),
        ((("enp1s0f1np1", "<subnet-2>.1/24\nlink set lo down"), RAIL[1]), "no IPv4 address"),
        ((("enp1s0f1np1", "<ipv6-2>/64"), RAIL[1]), "no IPv4 address"),
        ((("enp1s0f1np1", "<subnet-2>.999/24"), RAIL[1]), "no IPv4 address"),
        (RAIL, "also that of another rail"),
    ],
)
def test_a_rail_that_a_lab_cannot_have_is_left_out_and_named(rail: Any, why: str) -> None:
    plan = ReplayPlan(fleet(CapturedLink(BOTH, "", (RAIL, SECOND) if why.startswith("also") else (SECOND,)),
                            CapturedLink(BOTH, "", (rail,))))  # fmt: skip
    assert len(plan.cabling) == 1
    assert any(
        f"a rail of spark1-spark2 is left out: its {why}" in line or why in line for line in plan.notes()
    )


def test_a_link_of_unknown_nodes_is_an_error_and_a_bad_switch_name_is_not_used() -> None:
    with pytest.raises(LabError, match="a link between nodes that it does not have"):
        ReplayPlan(fleet(CapturedLink(("<node-1>", "<node-9>"), "", (RAIL,))))
    with pytest.raises(LabError, match="a link between nodes"):
        ReplayPlan(fleet(CapturedLink(("<node-1>", "<node-1>"), "", (RAIL,))))
    plan = ReplayPlan(fleet(CapturedLink(("<node-1>",), "x: {y}\n", (RAIL[:1],))))
    assert plan.cabling[0].switch == "switch"


def test_a_node_by_host_name_and_one_that_was_off() -> None:
    rows = [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
        {
            "ifname": "enp1s0f1np1",
            "address": "<mac-1>",
            "flags": [],
            "addr_info": [{"local": "<subnet-2>.10"}],
        },
        {"ifname": "wlP9s9", "address": "<mac-2>", "addr_info": [{"local": "<subnet-5>.77"}]},
    ]
    first = node(
        "<node-1>",
        answer(NETDEVS_ARGV, json.dumps(rows)),
        answer(("uname", "-n"), "<host-3>\n"),
        address="<host-1>",
    )
    plan = ReplayPlan(fleet(CapturedLink(BOTH, "", (RAIL,)), nodes=(first, node("<node-2>"))))
    shown = plan.nodes(layout(plan))["spark1"]
    netdevs, name = (one.stdout for one in shown.answers)
    assert '"10.77.7.11"' in netdevs
    assert '"4c:bb:47:07:01:19"' in netdevs, "a rail's MAC is that of the lab's netdev"
    assert '"192.168.100.10"' in netdevs
    assert name == "spark1\n"
    assert shown.dark == {"enp1s0f1np1"}
    assert "spark2: the bundle has no outputs of it; its commands print the lab's own." in plan.notes()
