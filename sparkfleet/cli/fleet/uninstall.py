"""`sparkfleet uninstall`: removes what sparkfleet made on the nodes, after showing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, open_session, run
from sparkfleet.cli.output import console
from sparkfleet.fabric.rails_helper import FIREWALL_FILE, FIREWALL_UNIT, NETPLAN_FILE, TABLE
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.setup.uninstall import Uninstalled, left_nodes
from sparkfleet.fleet.setup.uninstall import uninstall as uninstall_nodes
from sparkfleet.units import MIB


def uninstall(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    caches: Annotated[
        bool,
        typer.Option("--caches", help="Remove built models and copied wheels (~/.cache/sparkfleet), too."),
    ] = False,
) -> int:
    """Remove what sparkfleet made on the nodes: environment, state, keys, logs. Models of the Hub stay."""
    return run(_uninstall(open_session(inventory), yes, caches))


async def _uninstall(session: Session, yes: bool, caches: bool) -> int:
    found = await uninstall_nodes(session, "look", caches=caches)
    _print(found)
    if any(one.found for one in found.machines.values()):
        console.print("Deployments, API keys and secrets of the fleet are lost with it.")
        confirm(f"Remove fleet {session.inventory.fleet} from these machines?", yes)
        found = await uninstall_nodes(session, "remove", caches=caches)
        count = sum(len(one.found) for one in found.machines.values())
        console.print(f"Removed {count} {'directory' if count == 1 else 'directories'}.")
        if not found.left:
            console.print("`pip uninstall sparkfleet` removes the command line.")
    else:
        console.print("Nothing to remove.")
    if found.left:
        raise left_nodes(found.left)
    return Exit.DONE


def _print(found: Uninstalled) -> None:
    for name, one in found.machines.items():
        console.print(name, markup=False)
        for path, size in one.found:
            console.print(f"  remove  {path}  {size / MIB:.1f} MiB", markup=False, soft_wrap=True)
        for reason in one.kept:
            console.print(f"  stays   {reason}", markup=False, soft_wrap=True)
        for command in root_commands(one.of_root):
            console.print(f"  root's  {command}", markup=False, soft_wrap=True)
    for name, error in found.left.items():
        console.print(name, markup=False)
        console.print(f"  left    {error.what}", markup=False, soft_wrap=True)


def root_commands(paths: Sequence[str]) -> Iterator[str]:
    """Commands that remove root's files of a node, and end what they have set."""
    netplan, firewall = str(NETPLAN_FILE), (str(FIREWALL_UNIT), str(FIREWALL_FILE))
    if found := [path for path in paths if path in firewall]:
        yield (
            f"sudo systemctl disable --now {FIREWALL_UNIT.name}; sudo nft delete table inet {TABLE};"
            f" sudo rm {' '.join(found)}   # opens the ports that `fabric firewall` has closed"
        )
    if netplan in paths:
        yield f"sudo rm {netplan} && sudo netplan apply   # the addresses of the rails"
    if others := [path for path in paths if path not in (netplan, *firewall)]:
        yield f"sudo rm {' '.join(others)}"
