"""`sparkfleet up`: starts every node of the fleet, and its deployments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.lifecycle.bring_up import BroughtUp, bring_up, page_cache_denied
from sparkfleet.fleet.session import Session

WheelsOption = Annotated[
    Path | None,
    typer.Option(
        "--wheels",
        metavar="DIR",
        help="Install sparkfleet on the nodes from the wheels in DIR, for nodes without internet.",
        exists=True,
        file_okay=False,
    ),
]


def up(
    inventory: InventoryOption = DEFAULT_INVENTORY, wheels: WheelsOption = None, json: JsonOption = False
) -> int:
    """Start Ray, the controller, the gateway and the deployments. Changes nothing if all of it runs."""
    return run(_up(open_session(inventory), wheels, json))


async def _up(session: Session, wheels: Path | None, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        brought = await bring_up(session, progress, wheels)
    if json:
        _print(session, brought)
        return Exit.DONE
    console.print(
        f"{'Up' if brought.changed else 'Already running'}. {session.endpoint.words(brought.client)}"
    )
    if brought.changed:
        await _advise(session, brought)
    return Exit.DONE


def _print(session: Session, brought: BroughtUp) -> None:
    print_json(
        {
            "version": OUTPUT_VERSION,
            "fleet": session.inventory.fleet,
            "up": True,
            "endpoint": brought.client.address.endpoint,
            "changed": brought.changed,
            "left_by_a_reboot": list(brought.left_by_a_reboot),
            "ended_by_a_logout": list(brought.ended_by_a_logout),
            "without_nodes": brought.without_nodes,
        }
    )


async def _advise(session: Session, brought: BroughtUp) -> None:
    """Print advice for the nodes that were started, and for deployments that have none."""
    if brought.without_nodes:
        console.print(brought.without_nodes, markup=False)
    if brought.left_by_a_reboot:
        names = ", ".join(brought.left_by_a_reboot)
        console.print(f"{names}: has neither systemd nor cron; after a reboot, run `sparkfleet up` again.")
    if brought.ended_by_a_logout:
        names = ", ".join(brought.ended_by_a_logout)
        console.print(
            f"{names}: systemd ends the fleet when the last login of its user ends, and starts nothing after a reboot."
            " `sudo loginctl enable-linger $USER` there keeps it.",
            markup=False,
        )
    await _permissions(session)


async def _permissions(session: Session) -> None:
    """Print the commands with which root permits dropping the page cache, for nodes with a GPU that do not permit it."""
    denied = await page_cache_denied(session)
    if not denied.nodes:
        return
    console.print(
        f"\nsparkfleet may not drop the page cache on {', '.join(denied.nodes)}: before a start it gives back the cached"
        " files of models only, and engines cannot use the memory of other files, such as those of images."
        "\nTo permit it, run once on each of them:"
    )
    for command in denied.commands:
        console.print(f"  {command}", markup=False)
