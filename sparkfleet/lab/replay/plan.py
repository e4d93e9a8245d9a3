"""Turns a captured fleet into a lab: its cabling, the answers of its nodes, and the state that these show. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.inside import node_settings
from sparkfleet.lab.layout import MANAGEMENT, RDMA_OF, CableOrder, Layout
from sparkfleet.lab.machine import COMMANDS, REPLAYED
from sparkfleet.lab.network import mac_address
from sparkfleet.lab.replay.bundle import CapturedAnswer, CapturedFleet, CapturedLink, CapturedNode
from sparkfleet.lab.replay.stand_ins import SUBNET, StandIns, rail_subnets
from sparkfleet.lab.state import USER

NETDEVS_ARGV = ("ip", "-j", "-d", "addr", "show")
"""The command of the fact that has carrier, MTU, MAC and addresses of all netdevs."""
_KEEPS_RUNNING = frozenset({"cat", "grep", "id", "ip", "ls", "python3", "uname"})
"""Programs that the lab itself needs in a node, and that are not hidden if the captured node has none."""
_KEY = re.compile(r"<key(?:-([0-9]{1,6}))?>")
_MACHINE_ID = re.compile(r"/etc/machine-id:<machine-id-([0-9]{1,6})>")
_SWITCH = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PORT_KEY = "/etc/ssh/ssh_host_ed25519_key.pub:"


@dataclass(frozen=True)
class NodeReplay:
    """Everything that a bundle changes in one node of a lab."""

    answers: tuple[CapturedAnswer, ...]
    """Filled with the lab's values."""
    missing: tuple[str, ...]
    """Programs that the captured node does not have."""
    knobs: Mapping[str, str]
    """Settings for those commands of the lab whose output is not in the bundle."""
    dark: frozenset[str]
    """Netdevs of rails that have no carrier."""
    mtu: Mapping[str, int]
    """MTU of each netdev of a rail."""


class ReplayPlan:
    """A lab for a captured fleet.

    Raises:
        LabError: its rails cannot be those of a lab.
    """

    def __init__(self, fleet: CapturedFleet) -> None:
        self.fleet = fleet
        self.numbers = {node.name: number for number, node in enumerate(fleet.nodes, start=1)}
        self._left_out: list[str] = []
        self.subnets = rail_subnets(
            address for link in fleet.links for rail in link.rails for _, address in rail
        )
        self.cabling = tuple(self._cabling())

    @property
    def head(self) -> int:
        """Number of the head, from 1."""
        return self.numbers.get(self.fleet.head, 1)

    @property
    def replayed(self) -> dict[str, int]:
        """Number of replayed commands of each node of the lab."""
        return {
            f"spark{number}": sum(not _not_replayed(one) for one in self.fleet.nodes[number - 1].answers)
            for number in self.numbers.values()
        }

    def notes(self) -> list[str]:
        """Lines about parts of the bundle that the lab does not replay."""
        lines = [*self._left_out]
        for node in self.fleet.nodes:
            place = f"spark{self.numbers[node.name]}"
            if not node.answers:
                lines.append(f"{place}: the bundle has no outputs of it; its commands print the lab's own.")
            reasons = {f"{_shown(one)}: {why}" for one in node.answers if (why := _not_replayed(one))}
            lines += [f"{place}: not replayed: {reason}" for reason in sorted(reasons)]
        return lines

    def nodes(self, layout: Layout) -> dict[str, NodeReplay]:
        """The replay of each node by its name in the lab."""
        stand_ins = StandIns(self._known(layout), self._management_subnets(layout) | self.subnets)
        macs: dict[str, str] = {}
        for node in self.fleet.nodes:
            own = layout.nodes[self.numbers[node.name] - 1]
            for row in _netdevs(node.output(*NETDEVS_ARGV)):
                if row.get("ifname") in (MANAGEMENT, *RDMA_OF) and isinstance(row.get("address"), str):
                    macs[row["address"]] = mac_address(layout, own, row["ifname"])
        stand_ins = stand_ins.with_known({mac: own for mac, own in macs.items() if mac.startswith("<mac-")})
        return {f"spark{self.numbers[node.name]}": self._node(node, stand_ins) for node in self.fleet.nodes}

    def _node(self, node: CapturedNode, stand_ins: StandIns) -> NodeReplay:
        used = [one for one in node.answers if not _not_replayed(one)]
        answers = tuple(
            CapturedAnswer(
                tuple(map(stand_ins.fill, one.argv)),
                one.exit_code,
                _harmless(stand_ins.fill(one.stdout)),
                _harmless(stand_ins.fill(one.stderr)),
                one.missing,
                one.late,
            )
            for one in used
        )
        rails = {netdev for order in self.cabling for netdev in _netdevs_of(order, self.numbers[node.name])}
        rows = [row for row in _netdevs(node.output(*NETDEVS_ARGV)) if row.get("ifname") in rails]
        dark = {row["ifname"] for row in rows if "LOWER_UP" not in (row.get("flags") or ())}
        mtu = {str(row["ifname"]): int(row["mtu"]) for row in rows if _is_mtu(row.get("mtu"))}
        missing = {one.argv[0] for one in used if one.missing} - _KEEPS_RUNNING
        return NodeReplay(answers, tuple(sorted(missing)), dict(self._knobs(node)), frozenset(dark), mtu)

    def _known(self, layout: Layout) -> dict[str, str]:
        """Stand-ins of the nodes themselves: names, users, and addresses on the management LAN."""
        known: dict[str, str] = {}
        for node in self.fleet.nodes:
            own = layout.nodes[self.numbers[node.name] - 1]
            known[node.name] = own.name
            known[node.output("uname", "-n").strip()] = own.name
            known[node.user] = USER
            known[_management_address(node)] = own.address
            if not SUBNET.fullmatch(node.address):
                known[node.address] = own.name
        return {text: value for text, value in known.items() if text.startswith("<")}

    def _management_subnets(self, layout: Layout) -> dict[str, str]:
        """Subnets of the captured management network: the lab's own LAN."""
        found = (SUBNET.fullmatch(_management_address(node)) for node in self.fleet.nodes)
        return {match[1]: layout.network.rpartition(".")[0] for match in found if match}

    def _knobs(self, node: CapturedNode) -> Iterator[tuple[str, str]]:
        for key, value in self._shown_knobs(node):
            if node_settings.problem(key, value) is None:
                yield key, value

    def _shown_knobs(self, node: CapturedNode) -> Iterator[tuple[str, str]]:
        for answer in node.answers:
            if answer.argv[0] == "nvidia-smi" and answer.stdout.startswith("No devices were found"):
                yield "gpu", "missing"
            elif driver := _driver(answer):
                yield "driver", driver
            if found := _MACHINE_ID.search(answer.stdout):
                yield "machine_id", StandIns({}, {}).fill(f"<machine-id-{found[1]}>")
        first = next((one for one in self.fleet.nodes if _host_key(one) == _host_key(node)), node)
        if _host_key(node) and first is not node:
            yield "host_key", f"spark{self.numbers[first.name]}"

    def _cabling(self) -> Iterator[CableOrder]:
        stand_ins = StandIns({}, self.subnets)
        taken: set[tuple[str, str]] = set()
        for link in self.fleet.links:
            if not set(link.nodes) <= self.numbers.keys() or len(set(link.nodes)) < len(link.nodes):
                raise LabError(
                    "The bundle has a link between nodes that it does not have.",
                    means="Its inventory was changed by hand.",
                )
            rails = tuple(self._rails(link, stand_ins, taken))
            if rails:
                numbers = tuple(self.numbers[name] for name in link.nodes)
                yield CableOrder(numbers, self._switch(link), rails)

    def _rails(
        self, link: CapturedLink, stand_ins: StandIns, taken: set[tuple[str, str]]
    ) -> Iterator[tuple[tuple[str, str], ...]]:
        for rail in link.rails:
            ends = tuple((netdev, _with_prefix(stand_ins.fill(address))) for netdev, address in rail)
            used = {(node, netdev) for node, (netdev, _) in zip(link.nodes, ends, strict=True)}
            why = _unusable(ends) or ("its netdev is also that of another rail" if used & taken else "")
            if why:
                names = "-".join(f"spark{self.numbers[name]}" for name in link.nodes)
                self._left_out.append(f"a rail of {names} is left out: {why}.")
            else:
                taken |= used
                yield ends

    def _switch(self, link: CapturedLink) -> str | None:
        if len(link.nodes) == 2:
            return None
        return link.switch if _SWITCH.fullmatch(link.switch) else "switch"


def _unusable(ends: tuple[tuple[str, str], ...]) -> str:
    for netdev, address in ends:
        if netdev not in RDMA_OF:
            return f"its netdev is none of a Spark's ConnectX-7 ({', '.join(RDMA_OF)})"
        if not address:
            return "its address is no IPv4 address"
    return ""


def _with_prefix(address: str) -> str:
    """An IPv4 address with its prefix length; "" for what is none."""
    try:
        return IPv4Interface(address).with_prefixlen
    except ValueError:
        return ""


def _not_replayed(answer: CapturedAnswer) -> str:
    """The reason why the lab's own output of a command is used; "" if the bundle's is."""
    if answer.argv[0] not in (*COMMANDS, *REPLAYED):
        return "the lab has no such program"
    if _KEY.search(answer.stdout):
        return "keys are not in a bundle, the node's own are printed"
    return ""


def _harmless(text: str) -> str:
    """A text without characters that a terminal acts on, but for tabs and ends of lines."""
    return _CONTROL.sub("?", text)


def _shown(answer: CapturedAnswer) -> str:
    """A command in a few words, without characters that a terminal acts on."""
    words = " ".join(word for word in answer.argv if "\n" not in word)[:60]
    return "".join(one if one.isprintable() else "?" for one in words)


def _netdevs(output: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(output or "[]")
    except (ValueError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _netdevs_of(order: CableOrder, number: int) -> Iterator[str]:
    for place, node in enumerate(order.nodes):
        if node == number:
            yield from (rail[place][0] for rail in order.rails)


def _is_mtu(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 576 <= value <= 9000


def _management_address(node: CapturedNode) -> str:
    """Address on the management LAN; of a node that the inventory names by host name the first one of no rail."""
    if SUBNET.fullmatch(node.address):
        return node.address
    for row in _netdevs(node.output(*NETDEVS_ARGV)):
        name, found = str(row.get("ifname", "")), row.get("addr_info")
        if name.startswith(("en", "eth", "wl")) and name not in RDMA_OF and isinstance(found, list):
            for one in found:
                if isinstance(one, dict) and SUBNET.fullmatch(str(one.get("local", ""))):
                    return str(one["local"])
    return ""


def _driver(answer: CapturedAnswer) -> str:
    """The driver's version in the CSV of `nvidia-smi --query-gpu=…`; "" if there is none."""
    option = next((word for word in answer.argv if word.startswith("--query-gpu=")), "")
    fields = option.removeprefix("--query-gpu=").split(",")
    if answer.argv[0] != "nvidia-smi" or "driver_version" not in fields or answer.exit_code != 0:
        return ""
    row = answer.stdout.partition("\n")[0].split(",")
    return row[fields.index("driver_version")].strip() if len(row) == len(fields) else ""


def _host_key(node: CapturedNode) -> str:
    """Stand-in of the node's SSH host key; "" if it is not known."""
    for answer in node.answers:
        for line in answer.stdout.splitlines():
            if line.startswith(_PORT_KEY) and (found := _KEY.search(line)):
                return found[0] if found[1] else ""
    return ""
