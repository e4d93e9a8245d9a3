"""`sparkfleet up`: start every node of the fleet, and everything that is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.bring_up import BroughtUp, bring_up, page_cache_denied
from sparkfleet.fleet.session import Session

WheelsOption = Annotated[
    Path | None,
    typer.Option(
        "--wheels",
        metavar="DIR",
        help="Install sparkfleet on the nodes from the wheels in here, for nodes without internet.",
        exists=True,
        file_okay=False,
    ),
]


def up(
    inventory: InventoryOption = DEFAULT_INVENTORY, wheels: WheelsOption = None, json: JsonOption = False
) -> int:
    """Start Ray, the controller, the gateway, and what was served before. Running already: nothing changes."""
    return run(_up(open_session(inventory), wheels, json))


async def _up(session: Session, wheels: Path | None, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        brought = await bring_up(session, progress, wheels)
    if json:
        _print(session, brought)
        return Exit.DONE
    console.print(
        f"{'Up' if brought.changed else 'Running already'}. {session.endpoint_words(brought.client)}"
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
        }
    )


async def _advise(session: Session, brought: BroughtUp) -> None:
    """Commands that follow on nodes that were brought up."""
    if brought.left_by_a_reboot:
        names = ", ".join(brought.left_by_a_reboot)
        console.print(
            f"After a reboot {names} does not come back by itself: it has neither systemd nor cron."
        )
    await _permissions(session)


async def _permissions(session: Session) -> None:
    """Print, for nodes with a GPU, what root would have to permit for engines to load with all the memory there is."""
    denied = await page_cache_denied(session)
    if not denied.nodes:
        return
    console.print(
        f"\nOn {', '.join(denied.nodes)} sparkfleet may not drop the page cache, which engines on unified memory cannot use."
        "\nOnce, on each of them, if you want it:"
    )
    for command in denied.commands:
        console.print(f"  {command}", markup=False)
