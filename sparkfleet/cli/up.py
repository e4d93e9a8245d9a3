"""`sparkfleet up`: start the fleet's head, and everything that is wanted."""

from __future__ import annotations

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import console
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, Session, run
from sparkfleet.cli.watch import Progress


def up(inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Start Ray, the controller, the gateway, and what was served before. Running already: nothing changes."""
    return run(_up(Session(inventory)))


async def _up(session: Session) -> int:
    client = await session.find_controller()
    if client is not None:
        console.print(f"Running already. Endpoint: {client.address.endpoint}")
        return Exit.DONE
    progress = Progress()
    try:
        client = await session.bring_up(None, lambda _: progress.passing("starting Ray and the controller"))
    finally:
        progress.done()
    console.print(f"Up. Endpoint: {client.address.endpoint}")
    return Exit.DONE
