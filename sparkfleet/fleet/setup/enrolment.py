"""Enrols machines: their host keys, their kinds, the cables between them, and the inventory that follows.

A person confirms host keys between `read_keys` and `pinned_nodes`; nothing here asks, and nothing changes on a machine.
"""

from __future__ import annotations

import asyncio
import getpass
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sparkfleet.doctor.machine_kind import MachineKind, Recognised, recognise
from sparkfleet.errors import NodeError, SparkfleetError
from sparkfleet.fabric.ask import value_or
from sparkfleet.fabric.discovery import DiscoveredLinks
from sparkfleet.fabric.inventory_builder import EnrolledMachine, merge, name_machines, usable_links
from sparkfleet.fabric.mdns import Announced, discover
from sparkfleet.fabric.probe import look
from sparkfleet.fabric.topology import find_links
from sparkfleet.fleet.setup.moved_nodes import moved_nodes
from sparkfleet.hostfacts.fact import text
from sparkfleet.hostfacts.machine import MachineIdentity, ReadIdentity, ReadPciDevices
from sparkfleet.hostfacts.node import ReadMemory
from sparkfleet.knowledge.hardware import memory_size
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channel
from sparkfleet.remote.unreachable import Refused, UnknownHost
from sparkfleet.specs.fields import HomePath, quote
from sparkfleet.specs.inventory import Inventory, Node
from sparkfleet.specs.load import parse_inventory
from sparkfleet.specs.write import write_inventory

if TYPE_CHECKING:  # a slow import, for other machines only
    from sparkfleet.remote.ssh.host_keys import HostKey

_HOST = re.compile(
    r"(?:(?P<user>[^@\s]{1,64}(?:@[^@\s]{1,64})?)@)?"
    r"(?P<address>\[[^\]\s]+\]|[^@:\s]+|[^@\s]*:[^@\s]*:[^@\s]*)(?::(?P<port>[0-9]{1,5}))?"
)


class Host(NamedTuple):
    """A machine to enrol, as a person writes it."""

    user: str | None
    address: str
    port: int

    @property
    def where(self) -> tuple[str, int]:
        """The address and port."""
        return self.address, self.port


class ShownKey(NamedTuple):
    """The host key that a machine presents, beside the pinned one."""

    where: tuple[str, int]
    """Address and port."""
    key: HostKey
    pinned: str | None
    """Fingerprint in the inventory; None if the machine is new."""
    is_known: bool
    """True if the key is in `~/.ssh/known_hosts`, and that is accepted."""
    moved: str = ""
    """Node of the inventory that had this key at another address, where it is no longer."""

    @property
    def name(self) -> str:
        """`spark1`, or `[spark1]:2222`."""
        return _at(self.where)

    @property
    def is_changed(self) -> bool:
        """True if it differs from the pinned key."""
        return self.pinned is not None and self.pinned != self.key.fingerprint

    @property
    def is_new(self) -> bool:
        """True if neither the inventory nor known_hosts has a key of this machine."""
        return self.pinned is None and not self.is_known


class FoundMachine(NamedTuple):
    """A machine that accepted the login: its node, host name, kind and memory."""

    node: Node
    hostname: str
    kind: Recognised
    memory: str = ""
    """Its nominal size ("64 GB"); "" if it was not read."""


class NewInventory(NamedTuple):
    """The text of an inventory, and the reasons for rails that it leaves out."""

    text: str
    doubts: tuple[str, ...]


def parse_host(text: str) -> Host:
    """`[user@]address[:port]`; an IPv6 address with a port is in brackets. Raises SparkfleetError."""
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 22) < 1 << 16:
        raise SparkfleetError(f"HOST {quote(text)} is not valid.", do="Write it as [user@]address[:port].")
    return Host(match["user"], match["address"].strip("[]"), int(match["port"] or 22))


def hosts_of(old: Inventory | None) -> list[Host]:
    """The machines of an inventory; none if it has only this machine, as the packaged one."""
    if old is None or all(node.is_local for node in old.nodes.values()):
        return []
    return [Host(node.user, node.address, node.port) for node in old.nodes.values()]


async def hosts_on_lan() -> tuple[Announced, ...]:
    """Sparks that announce themselves on the LAN. Raises SparkfleetError if there is none."""
    found = await discover()
    if not found:
        raise SparkfleetError(
            "No Spark answered on this network.",
            means="mDNS does not cross routers, guest Wi-Fi often blocks it, and a machine with a name of your own is not"
            " recognised.",
            do="Give their addresses: `sparkfleet init HOST…`.",
        )
    return found


# --- host keys --------------------------------------------------------------------------------------------------------


SCHEMA = "docs/schema/inventory.schema.json"
"""The schema for editors, in a clone of the project."""
_CHECK_HOST = "Check the HOST that was given; with another port it is `sparkfleet init USER@HOST:PORT`."
"""Remedy for a machine that no inventory has."""


async def read_keys(
    hosts: Sequence[Host], old: Inventory | None, *, accept_known: bool
) -> tuple[ShownKey, ...]:
    """The host keys that the machines present, without a login. This machine and nodes behind a jump host have none.

    Raises:
        Unreachable: a machine does not answer.
    """
    from sparkfleet.remote.ssh.host_keys import fingerprint

    before = _before(old)
    given = dict.fromkeys(host.where for host in hosts)
    far = [one for one in given if one[0] != "local" and not (one in before and before[one].jump)]

    async def read(address: str, port: int) -> HostKey:
        try:
            return await fingerprint(address, port)
        except (Refused, UnknownHost) as error:
            if (address, port) in before:
                raise
            raise type(error)(error.what, means=error.means, do=_CHECK_HOST) from error

    answers = await asyncio.gather(*(read(*one) for one in far), return_exceptions=True)
    keys = [one for one in answers if not isinstance(one, BaseException)]
    if len(keys) < len(answers):
        raise _all_of([one for one in answers if isinstance(one, BaseException)])
    moved = await moved_nodes(dict(zip(far, keys, strict=True)), old, set(given))
    return tuple(
        ShownKey(
            where,
            key,
            key.fingerprint if where in moved else before[where].host_key if where in before else None,
            accept_known and _is_known(where, key),
            moved.get(where, ""),
        )
        for where, key in zip(far, keys, strict=True)
    )


def _all_of(failed: Sequence[BaseException]) -> BaseException:
    """The first error, with what happened at each of the machines that did not answer."""
    first = next((one for one in failed if not isinstance(one, SparkfleetError)), failed[0])
    if isinstance(first, SparkfleetError):
        first.what = "\n".join(one.what for one in failed if isinstance(one, SparkfleetError))
    return first


def pinned_nodes(
    hosts: Sequence[Host],
    keys: Sequence[ShownKey],
    old: Inventory | None,
    *,
    user: str | None,
    identity: str | None,
) -> list[Node]:
    """The nodes with the confirmed keys. Raises SparkfleetError for a user name or address that cannot be one."""
    before = _before(old)
    shown = {one.where: one.key for one in keys}
    if old is not None:
        before |= {one.where: old.nodes[one.moved] for one in keys if one.moved}
    users = {host.where: host.user for host in hosts if host.user}
    given = dict.fromkeys(host.where for host in hosts)
    with _valid_words():
        return [
            _node(where, shown.get(where), before.get(where), users.get(where) or user, identity)
            for where in given
        ]


def _before(old: Inventory | None) -> dict[tuple[str, int], Node]:
    return {(node.address, node.port): node for node in old.nodes.values()} if old else {}


def _node(
    where: tuple[str, int], key: HostKey | None, before: Node | None, user: str | None, identity: str | None
) -> Node:
    address, port = where
    if address == "local":
        return before or Node(address="local")
    if before is not None:
        given = {"user": user, "identity_file": identity}
        changed = {name: value for name, value in given.items() if value is not None}
        changed |= {"host_key": key.fingerprint} if key else {}
        changed |= {"address": address}
        ports = {"port": port} if port != before.port else {}
        return Node.model_validate({**before.model_dump(exclude_unset=True), **changed, **ports})
    fields = {"address": address, "user": user or getpass.getuser()}
    optional = {"port": port if port != 22 else None, "identity_file": identity}
    return Node.model_validate(
        {**fields, "host_key": key.fingerprint if key else None}
        | {name: value for name, value in optional.items() if value is not None}
    )


def _is_known(where: tuple[str, int], key: HostKey) -> bool:
    from sparkfleet.remote.ssh.config import known_hosts

    entries = known_hosts(Path.home() / ".ssh" / "known_hosts").lookup(_at(where))
    return entries is not None and any(one.fingerprint == key.fingerprint for one in entries.values())


def _at(where: tuple[str, int]) -> str:
    address, port = where
    return address if port == 22 else f"[{address}]:{port}"


# --- machines and cables ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def channels_to(nodes: Sequence[Node]) -> AsyncIterator[list[Channel]]:
    """Channels to nodes that have no name yet, in their order; closed at the end."""
    channels = [open_channel(node.address, node) for node in nodes]
    try:
        yield channels
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def find_machines(nodes: Sequence[Node], channels: Sequence[Channel]) -> list[FoundMachine]:
    """Log in to the nodes, and recognise their machines. Raises NodeError."""
    answers = await asyncio.gather(*(_recognise(channel) for channel in channels))
    return [FoundMachine(node, *answer) for node, answer in zip(nodes, answers, strict=True)]


def require_sparks(machines: Sequence[FoundMachine]) -> None:
    """Raises SparkfleetError if a machine is not a Spark."""
    strangers = [
        f"{one.node.address} is {one.kind.name or 'no Spark'}: {one.kind.because}."
        for one in machines
        if one.kind.kind is not MachineKind.SPARK
    ]
    if strangers:
        raise SparkfleetError(
            "\n".join(strangers),
            means="sparkfleet's figures for memory, speed and cables hold for Sparks only.",
            do="Leave it out, or add --any to accept it.",
        )


async def _recognise(channel: Channel) -> tuple[str, Recognised, str]:
    name, identity, pci, meminfo = await run_batch(
        channel, [("uname", "-n"), ReadIdentity.argv, ReadPciDevices.argv, ReadMemory.argv]
    )
    if isinstance(name, NodeError):
        raise name
    machine = value_or(identity, ReadIdentity.parse, MachineIdentity(), fine=ReadIdentity.fine)
    kind = recognise(machine, value_or(pci, ReadPciDevices.parse, ()))
    memory = value_or(meminfo, ReadMemory.parse, None)
    return text(name.stdout.strip(), 64), kind, memory_size(memory.total) if memory else ""


def named(
    machines: Sequence[FoundMachine], old: Inventory | None, keys: Sequence[ShownKey] = ()
) -> dict[str, Node]:
    """The machines' nodes by their names: those of `old`, also of nodes that have another address, or their host names."""
    found = [EnrolledMachine(node=one.node, hostname=one.hostname) for one in machines]
    return name_machines(found, old, {one.where: one.moved for one in keys if one.moved})


async def find_cables(
    names: Mapping[str, Node], nodes: Sequence[Node], channels: Sequence[Channel]
) -> DiscoveredLinks:
    """The cables between the machines, by their names. Raises NodeError or FactError."""
    by_node = dict(zip(nodes, channels, strict=True))
    return find_links(await look({name: by_node[node] for name, node in names.items()}))


# --- the inventory ----------------------------------------------------------------------------------------------------


def new_inventory(
    names: Mapping[str, Node], found: DiscoveredLinks, old: Inventory | None, *, fleet: str, file: Path
) -> NewInventory:
    """The inventory of the machines and their cables; fields of `old` that cannot be detected are kept.

    Raises:
        SparkfleetError: the fleet's name is not valid.
    """
    links, doubts = usable_links(found)
    with _valid_words():
        merged = merge(old, names, links, fleet)
    written = write_inventory(merged, about=_about(found, file.parent), doubts=doubts)
    parse_inventory(written, str(file))
    return NewInventory(written, doubts)


def _about(found: DiscoveredLinks, directory: Path) -> list[str]:
    has_schema = (
        directory / SCHEMA
    ).is_file()  # in a clone; elsewhere an editor would report that it is missing
    return [
        *((f"yaml-language-server: $schema=./{SCHEMA}", "") if has_schema else ()),
        f"Written by `sparkfleet init`; the cables that it found form: {found.kind}. You may edit this file:",
        "a later `init` shows its changes first, and keeps every field that it cannot detect.",
    ]


def require_identity(identity: str) -> None:
    """Raises SparkfleetError unless a private key can be there: as a file, or in the agent with its public half there."""
    with _valid_words("--identity-file"):
        TypeAdapter(HomePath).validate_python(identity)
    path = Path(identity).expanduser()
    if not (path.is_file() or path.with_name(path.name + ".pub").is_file()):
        raise SparkfleetError(
            f"--identity-file {identity}: {'this is no file' if path.exists() else 'there is no such file'}.",
            means="No machine was contacted.",
            do="Name the private key that logs in to the machines; without it, the usual ones and the agent's are tried.",
        )


@contextmanager
def _valid_words(option: str = "") -> Iterator[None]:
    """Rejects words that are no user name, address, file or name of a fleet. `option`: name of a bare value."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or option
        raise SparkfleetError(f"{where}: {first['msg']}", do="Correct the command line.") from None
