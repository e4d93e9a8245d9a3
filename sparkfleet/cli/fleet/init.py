"""`sparkfleet init HOST…`: logs in to machines, finds the cables between them, and writes the inventory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, run
from sparkfleet.cli.output import console
from sparkfleet.errors import SparkfleetError, WrongFleetError
from sparkfleet.fabric.discovery import DiscoveredLinks, rejection_lines
from sparkfleet.fabric.inventory_builder import describe_alike
from sparkfleet.fleet.nodes.surroundings import SHOWING_S, other_fleet_lines, require_free, surroundings_of
from sparkfleet.fleet.setup.enrolment import (
    FoundMachine,
    NewInventory,
    channels_to,
    find_cables,
    find_machines,
    named,
    new_inventory,
    require_sparks,
)
from sparkfleet.fleet.setup.hosts import Host, hosts_of, hosts_on_lan, parse_host, require_identity
from sparkfleet.fleet.setup.shown_keys import ShownKey, pinned_nodes, read_keys
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.unreachable import Unreachable
from sparkfleet.specs.load import load_inventory, parse_inventory

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
NEW_FLEET = "home"
"""Name of a fleet without --fleet."""
AnyOption = Annotated[bool, typer.Option("--any", help="Also accept machines that are no Sparks.")]
FleetOption = Annotated[
    str | None, typer.Option("--fleet", help="Name of a new fleet.", show_default=NEW_FLEET)
]


class Options(NamedTuple):
    """Options beside the hosts."""

    inventory: Path
    user: str | None
    identity: str | None
    yes: bool
    known: bool
    any: bool
    fleet: str | None
    host_keys: tuple[str, ...]


def init(  # noqa: PLR0917  # its parameters are the command line's
    hosts: HostsArgument = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    user: UserOption = None,
    identity: IdentityOption = None,
    yes: YesOption = False,
    known: KnownOption = False,
    everything: AnyOption = False,
    fleet: FleetOption = None,
    host_keys: HostKeysOption = None,
) -> int:
    """Find the Sparks and the cables between them, and write inventory.yaml. Changes nothing on any node."""
    keys = tuple(host_keys or ())
    options = Options(inventory, user, identity, yes, known, everything, fleet, keys)
    return run(_init([parse_host(host) for host in hosts or ()], options))


async def _init(hosts: list[Host], options: Options) -> int:
    if not options.inventory.parent.is_dir():
        raise SparkfleetError(
            f"{options.inventory}: {options.inventory.parent} is no directory.",
            means="The inventory could not be written there, so no machine was contacted.",
            do=_ELSEWHERE,
        )
    if options.identity is not None:
        require_identity(options.identity)
    old = load_inventory(options.inventory) if options.inventory.exists() else None
    if old is not None and options.fleet not in {None, old.fleet}:
        raise SparkfleetError(
            f"{options.inventory} is the inventory of fleet {old.fleet}; --fleet {options.fleet} names a new one.",
            means="Nodes, keys and state go by the name of a fleet, so it stays as it is.",
            do=f"`sparkfleet init … --fleet {options.fleet} --inventory FILE` writes another inventory.",
        )
    is_of_inventory = not hosts
    hosts = hosts or hosts_of(old) or await _discover()
    try:
        keys = await read_keys(hosts, old, accept_known=options.known)
    except Unreachable as error:
        if is_of_inventory and len(hosts) > 1:
            error.do += " Or give the addresses of the others: `sparkfleet init HOST…` keeps what the inventory has of it."
        raise
    _confirm_keys(keys, options)
    nodes = pinned_nodes(hosts, keys, old, user=options.user, identity=options.identity)
    async with channels_to(nodes) as channels:
        machines = await find_machines(nodes, channels)
        _show_machines(machines)
        if not options.any:
            require_sparks(machines)
        names = named(machines, old, keys)
        console.print("Looking for cables …")
        found = await find_cables(names, nodes, channels)
        new = new_inventory(names, found, old, fleet=options.fleet or NEW_FLEET, file=options.inventory)
        _show(found, new.doubts)
        if old is None:
            by_node = dict(zip(nodes, channels, strict=True))
            await _show_fleets(new, {name: by_node[node] for name, node in names.items()})
    return _write(new.text, options)


async def _discover() -> list[Host]:
    console.print("Looking for Sparks on the LAN (mDNS) …")
    found = await hosts_on_lan()
    for one in found:
        console.print(Text(f"  {one.name}  {one.address}"))
    return [Host(None, one.address, 22) for one in found]


def _confirm_keys(keys: Sequence[ShownKey], options: Options) -> None:
    """Show every host key, and ask about those that are neither pinned nor known."""
    for one in keys:
        console.print(Text(f"  {one.name}  {one.key.type}  {one.key.fingerprint}{_note(one, options)}"))
    if changed := [one.where[0] for one in keys if one.is_changed]:
        confirm(
            f"The host key of {', '.join(changed)} differs from the pinned one: the system was reinstalled,"
            " or another machine answers. Pin the new key?",
            alone="--yes does not accept a changed key: compare it on the machine's own console, then run this in a"
            " terminal.",
        )
    if new := [one for one in keys if one.is_new and one.key.fingerprint not in options.host_keys]:
        console.print(
            "Compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on each machine's own console."
        )
        confirm(
            f"Pin {'this key' if len(new) == 1 else f'these {len(new)} keys'}?",
            alone="--yes pins no key that nobody has compared: add --host-key FINGERPRINT for each machine, as its own"
            " console shows it, or --known-hosts if you have logged in to it before.",
        )


def _note(one: ShownKey, options: Options) -> str:
    if one.is_changed:
        return f"  (pinned is {one.pinned})"
    if one.moved:
        return f"  (pinned: {one.moved}, which is no longer at its address in the inventory)"
    if one.pinned is not None:
        return "  (pinned)"
    if one.key.fingerprint in options.host_keys:
        return "  (as given)"
    return "  (in known_hosts)" if one.is_known else ""


# --- output -----------------------------------------------------------------------------------------------------------


def _show_machines(machines: Sequence[FoundMachine]) -> None:
    for one in machines:
        name = ", ".join(filter(None, (one.kind.name or "not a Spark", one.memory)))
        console.print(Text(f"  {one.hostname or one.node.address}: {name} ({one.kind.because})"))


def _show(found: DiscoveredLinks, doubts: Sequence[str]) -> None:
    if not found.links:
        console.print("No cable was found between these machines.")
    for words, link in describe_alike(found.links):
        console.print(Text(f"  {words}"))
        for rail in link.rails:
            ends = " – ".join(f"{end.netdev.name} ({end.rdma or 'no RDMA'})" for end in rail.ends)
            console.print(Text(f"    {ends}  found by {', '.join(rail.methods)}"))
    for line in rejection_lines(found.findings):
        console.print(Text(f"  {line}"))
    for doubt in doubts:
        console.print(Text(f"  left out: {doubt}"))


async def _show_fleets(new: NewInventory, channels: Mapping[str, Channel]) -> None:
    """Name fleets that run on the machines already: their owner may have lost the inventory."""
    inventory = parse_inventory(new.text)
    around = await surroundings_of(inventory, channels, SHOWING_S)
    lines = list(other_fleet_lines(around))
    try:
        require_free(inventory, around)
    except WrongFleetError as error:  # of the same name, with another head: `up` would refuse
        lines.append(f"{error.what} {error.do}")
    for line in lines:
        console.print(Text(f"  {line}"))


def _write(text: str, options: Options) -> int:
    file = options.inventory
    before = file.read_text(encoding="utf-8") if file.exists() else None
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
        mode = 0o644 if before is None else file.stat().st_mode & 0o777
        write_atomically(file.resolve(), text.encode(), mode=mode)  # a full disk leaves the former one whole
    except OSError as error:
        raise SparkfleetError(
            f"{file}: cannot be written: {error.strerror}.",
            means="The machines and cables that were found were not saved.",
            do=_ELSEWHERE,
        ) from None
    console.print(f"Wrote {file}.")
    rails = "`sparkfleet fabric plan` if rails lack addresses, then " if parse_inventory(text).links else ""
    console.print(
        f"Next: {rails}`sparkfleet doctor`, and `sparkfleet apply ORG/MODEL`, which shows its plan before you confirm it."
    )
    return Exit.DONE
