"""`sparkfleet down`: stop everything; what was asked for is kept for the next `up`."""

from __future__ import annotations

import asyncio

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, run
from sparkfleet.cli.watch import Progress

LOOK_S = 0.5


def down(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Stop the engines, the gateway, the controller and Ray. `up` or `apply` brings back what was served."""
    return run(_down(Session(inventory), json))


async def _down(session: Session, json: bool) -> int:
    progress = Progress(quiet=json)
    work = asyncio.create_task(session.take_down())
    try:
        while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
            progress.passing("stopping")
    finally:
        progress.done()
    work.result()
    if json:
        print_json({"version": OUTPUT_VERSION, "fleet": session.inventory.fleet, "up": False})
    else:
        console.print("Down. `sparkfleet up` brings back what was served.")
    return Exit.DONE
