"""`sparkfleet init HOST…`: logs in to machines, finds the cables between them, and writes the inventory."""

from __future__ import annotations

import asyncio
import difflib
import getpass
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import paramiko
import typer
from pydantic import ValidationError
from rich.text import Text

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, run
from sparkfleet.cli.output import console
from sparkfleet.doctor.machine_kind import MachineKind, Recognised, recognise
from sparkfleet.errors import NodeError, SparkfleetError
from sparkfleet.fabric.ask import value_or
from sparkfleet.fabric.discovery import DiscoveredLinks
from sparkfleet.fabric.inventory_builder import EnrolledMachine, describe, merge, name_machines, usable_links
from sparkfleet.fabric.mdns import discover
from sparkfleet.fabric.probe import look
from sparkfleet.fabric.topology import find_links
from sparkfleet.hostfacts.fact import text
from sparkfleet.hostfacts.machine import MachineIdentity, ReadIdentity, ReadPciDevices
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channel
from sparkfleet.remote.ssh.host_keys import HostKey, fingerprint
from sparkfleet.specs.inventory import Inventory, Node
from sparkfleet.specs.load import load_inventory, parse_inventory
from sparkfleet.specs.write import write_inventory

_HOST = re.compile(
    r"(?:(?P<user>[^@\s]{1,64})@)?(?P<address>\[[^\]\s]+\]|[^@:\s]+|[^@\s]*:[^@\s]*:[^@\s]*)(?::(?P<port>[0-9]{1,5}))?"
)

_ELSEWHERE = "Name a file that can be written with `-i FILE`."

HostsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOST",
        help="Address, user@address or address:port of each Spark; `local` is this machine."
        " Default: the machines of the inventory; if there is none, those that mDNS finds on the LAN.",
        show_default=False,
    ),
]
UserOption = Annotated[
    str | None, typer.Option("--user", "-u", help="User to log in as, for each HOST without one.")
]
IdentityOption = Annotated[
    str | None,
    typer.Option(
        "--identity-file", metavar="FILE", help="Private key to log in with; it is noted in the inventory."
    ),
]
KnownOption = Annotated[
    bool,
    typer.Option("--known-hosts", help="Accept host keys that are in ~/.ssh/known_hosts without asking."),
]
HostKeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host-key",
        metavar="FINGERPRINT",
        help="Accept this host key (SHA256:…) without asking. Repeatable. --yes accepts no other new key.",
        show_default=False,
    ),
]
AnyOption = Annotated[bool, typer.Option("--any", help="Also accept machines that are no Sparks.")]
FleetOption = Annotated[str, typer.Option("--fleet", help="Name of a new fleet.")]


class Options(NamedTuple):
    """Options beside the hosts."""

    inventory: Path
    user: str | None
    identity: str | None
    yes: bool
    known: bool
    any: bool
    fleet: str
    host_keys: tuple[str, ...]


class Host(NamedTuple):
    """One HOST of the command line."""

    user: str | None
    address: str
    port: int


def init(  # noqa: PLR0917  # its parameters are the command line's
    hosts: HostsArgument = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    user: UserOption = None,
    identity: IdentityOption = None,
    yes: YesOption = False,
    known: KnownOption = False,
    everything: AnyOption = False,
    fleet: FleetOption = "home",
    host_keys: HostKeysOption = None,
) -> int:
    """Find the Sparks and the cables between them, and write inventory.yaml. Changes nothing on any node."""
    keys = tuple(host_keys or ())
    options = Options(inventory, user, identity, yes, known, everything, fleet, keys)
    return run(_init([parse_host(host) for host in hosts or ()], options))


def parse_host(text: str) -> Host:
    """`[user@]address[:port]`; an IPv6 address with a port is in brackets. Raises SparkfleetError."""
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 22) < 1 << 16:
        raise SparkfleetError(f"HOST {text!r} is not valid.", do="Write it as [user@]address[:port].")
    return Host(match["user"], match["address"].strip("[]"), int(match["port"] or 22))


@contextmanager
def _plainly() -> Iterator[None]:
    """Rejects command-line values that are no user name, address or file."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SparkfleetError(f"{where}: {first['msg']}", do="Correct the command line.") from None


async def _init(hosts: list[Host], options: Options) -> int:
    if not options.inventory.parent.is_dir():
        raise SparkfleetError(
            f"{options.inventory}: {options.inventory.parent} is no directory.",
            means="The inventory could not be written there, so no machine was contacted.",
            do=_ELSEWHERE,
        )
    old = load_inventory(options.inventory) if options.inventory.exists() else None
    hosts = hosts or _known_before(old) or await _discovered()
    nodes = await _pinned(hosts, old, options)
    channels = {str(number): open_channel(node.address, node) for number, node in enumerate(nodes)}
    try:
        machines = await _machines(nodes, channels, options)
        named = name_machines(machines, old)
        found = await _found(named, nodes, channels)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))
    links, doubts = usable_links(found)
    with _plainly():
        merged = merge(old, named, links, options.fleet)
    _show(found, doubts)
    text = write_inventory(merged, about=_about(found), doubts=doubts)
    parse_inventory(text, str(options.inventory))
    return _write(text, options)


def _known_before(old: Inventory | None) -> list[Host]:
    """The machines of an inventory; none if it has only this machine, as the one that comes with sparkfleet."""
    if old is None or all(node.is_local for node in old.nodes.values()):
        return []
    return [Host(node.user, node.address, node.port) for node in old.nodes.values()]


# --- host keys --------------------------------------------------------------------------------------------------------


async def _discovered() -> list[Host]:
    console.print("Looking for Sparks on the LAN (mDNS) …")
    found = await discover()
    if not found:
        raise SparkfleetError(
            "No Spark answered on this network.",
            means="mDNS does not cross routers, and guest Wi-Fi often blocks it.",
            do="Give their addresses: `sparkfleet init HOST…`.",
        )
    for one in found:
        console.print(Text(f"  {one.name}  {one.address}"))
    return [Host(None, one.address, 22) for one in found]


async def _pinned(hosts: Sequence[Host], old: Inventory | None, options: Options) -> list[Node]:
    """The nodes, each with a host key that was confirmed."""
    before = {(node.address, node.port): node for node in old.nodes.values()} if old else {}
    given = list(dict.fromkeys((host.address, host.port) for host in hosts))
    far = [one for one in given if one[0] != "local" and not (one in before and before[one].jump)]
    shown = dict(zip(far, await asyncio.gather(*(fingerprint(*one) for one in far)), strict=True))
    _agree(shown, before, options)
    users = {(host.address, host.port): host.user for host in hosts if host.user}
    with _plainly():
        return [_node(one, shown.get(one), before.get(one), users.get(one), options) for one in given]


def _node(
    where: tuple[str, int], key: HostKey | None, before: Node | None, user: str | None, options: Options
) -> Node:
    address, port = where
    if address == "local":
        return before or Node(address="local")
    if before is not None:
        given = {"user": user or options.user, "identity_file": options.identity}
        changed = {name: value for name, value in given.items() if value is not None}
        changed |= {"host_key": key.fingerprint} if key else {}
        return Node.model_validate({**before.model_dump(exclude_unset=True), **changed})
    fields = {"address": address, "user": user or options.user or getpass.getuser()}
    optional = {"port": port if port != 22 else None, "identity_file": options.identity}
    return Node.model_validate(
        {**fields, "host_key": key.fingerprint if key else None}
        | {name: value for name, value in optional.items() if value is not None}
    )


def _agree(
    shown: Mapping[tuple[str, int], HostKey], before: Mapping[tuple[str, int], Node], options: Options
) -> None:
    """Show every host key, and ask about those that are neither pinned nor known."""
    new, changed = [], []
    for where, key in shown.items():
        pinned = before[where].host_key if where in before else None
        note = _note(where, key, pinned, options)
        if pinned is not None and pinned != key.fingerprint:
            changed.append(where[0])
        elif not note:
            new.append(where[0])
        console.print(Text(f"  {_at(where)}  {key.type}  {key.fingerprint}{note}"))
    if changed:
        confirm(
            f"The host key of {', '.join(changed)} differs from the pinned one: the system was reinstalled,"
            " or another machine answers. Pin the new key?",
            alone="--yes does not accept a changed key: compare it on the machine's own console, then run this in a"
            " terminal.",
        )
    if new:
        console.print(
            "Compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on each machine's own console."
        )
        confirm(
            f"Pin {'this key' if len(new) == 1 else f'these {len(new)} keys'}?",
            alone="--yes pins no key that nobody has compared: add --host-key FINGERPRINT for each machine, as its own"
            " console shows it, or --known-hosts if you have logged in to it before.",
        )


def _note(where: tuple[str, int], key: HostKey, pinned: str | None, options: Options) -> str:
    if pinned == key.fingerprint:
        return "  (pinned)"
    if pinned is not None:
        return f"  (pinned is {pinned})"
    if key.fingerprint in options.host_keys:
        return "  (as given)"
    return "  (in known_hosts)" if options.known and _is_known(where, key) else ""


def _is_known(where: tuple[str, int], key: HostKey) -> bool:
    file = Path.home() / ".ssh" / "known_hosts"
    if not file.is_file():
        return False
    entries = paramiko.HostKeys(str(file)).lookup(_at(where))
    return entries is not None and any(one.fingerprint == key.fingerprint for one in entries.values())


def _at(where: tuple[str, int]) -> str:
    address, port = where
    return address if port == 22 else f"[{address}]:{port}"


# --- kinds of machines ------------------------------------------------------------------------------------------------


async def _machines(
    nodes: Sequence[Node], channels: Mapping[str, Channel], options: Options
) -> list[EnrolledMachine]:
    """Machines with their host names. Raises SparkfleetError if one is no Spark and `--any` was not given."""
    answers = await asyncio.gather(*(_ask(channel) for channel in channels.values()))
    strangers = []
    for node, (hostname, found) in zip(nodes, answers, strict=True):
        console.print(Text(f"  {hostname or node.address}: {found.name or 'not a Spark'} ({found.because})"))
        if found.kind is not MachineKind.SPARK:
            strangers.append(f"{node.address} is {found.name or 'no Spark'}: {found.because}.")
    if strangers and not options.any:
        raise SparkfleetError(
            "\n".join(strangers),
            means="sparkfleet's figures for memory, speed and cables hold for Sparks only.",
            do="Leave it out, or add --any to accept it.",
        )
    return [EnrolledMachine(node=node, hostname=name) for node, (name, _) in zip(nodes, answers, strict=True)]


async def _ask(channel: Channel) -> tuple[str, Recognised]:
    name, identity, pci = await run_batch(channel, [("uname", "-n"), ReadIdentity.argv, ReadPciDevices.argv])
    if isinstance(name, NodeError):
        raise name
    machine = value_or(identity, ReadIdentity.parse, MachineIdentity(), fine=ReadIdentity.fine)
    return text(name.stdout.strip(), 64), recognise(machine, value_or(pci, ReadPciDevices.parse, ()))


async def _found(
    named: Mapping[str, Node], nodes: Sequence[Node], channels: Mapping[str, Channel]
) -> DiscoveredLinks:
    """The cables between machines, by the names they have now."""
    by_node = dict(zip(nodes, channels.values(), strict=True))
    console.print("Looking for cables …")
    views = await look({name: by_node[node] for name, node in named.items()})
    return find_links(views)


# --- output -----------------------------------------------------------------------------------------------------------


def _show(found: DiscoveredLinks, doubts: Sequence[str]) -> None:
    if not found.links:
        console.print("No cable was found between these machines.")
    for link in found.links:
        console.print(Text(f"  {describe(link)}"))
        for rail in link.rails:
            ends = " – ".join(f"{end.netdev.name} ({end.rdma or 'no RDMA'})" for end in rail.ends)
            console.print(Text(f"    {ends}  found by {', '.join(rail.methods)}"))
    for finding in found.findings:
        console.print(Text(f"  {finding}"))
    for doubt in doubts:
        console.print(Text(f"  left out: {doubt}"))


def _about(found: DiscoveredLinks) -> list[str]:
    return [
        "yaml-language-server: $schema=./docs/schema/inventory.schema.json",
        "",
        f"Written by `sparkfleet init`; the cables that it found form: {found.kind}. You may edit this file:",
        "a later `init` shows its changes first, and keeps every field that it cannot detect.",
    ]


def _write(text: str, options: Options) -> int:
    file = options.inventory
    before = file.read_text() if file.exists() else None
    if before == text:
        console.print(f"No change: {file} has all of this already.")
        return Exit.DONE
    if before is not None:
        for line in difflib.unified_diff(
            before.splitlines(), text.splitlines(), str(file), "new", lineterm=""
        ):
            console.print(Text(line, {"+": "green", "-": "red"}.get(line[:1], "")))
        confirm(f"Write these changes to {file}?", options.yes)
    try:
        file.write_text(text)
    except OSError as error:
        raise SparkfleetError(
            f"{file}: cannot be written: {error.strerror}.",
            means="The machines and cables that were found were not saved.",
            do=_ELSEWHERE,
        ) from None
    console.print(f"Wrote {file}.")
    console.print(
        "Next: `sparkfleet fabric plan` if rails lack addresses, then `sparkfleet doctor` and `sparkfleet up`."
    )
    return Exit.DONE
