"""`sparkfleet down`: stop everything; what was asked for is kept for the next `up`."""

from __future__ import annotations

import asyncio

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import console
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, Session, run
from sparkfleet.cli.watch import Progress

LOOK_S = 0.5


def down(inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Stop the engines, the gateway, the controller and Ray. `up` or `apply` brings back what was served."""
    return run(_down(Session(inventory)))


async def _down(session: Session) -> int:
    progress = Progress()
    work = asyncio.create_task(session.take_down())
    try:
        while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
            progress.passing("stopping")
    finally:
        progress.done()
    work.result()
    console.print("Down. `sparkfleet up` brings back what was served.")
    return Exit.DONE
