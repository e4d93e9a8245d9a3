"""`sparkfleet up`: start every node of the fleet, and everything that is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import console
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, Session, run
from sparkfleet.cli.watch import Progress

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


def up(inventory: InventoryOption = DEFAULT_INVENTORY, wheels: WheelsOption = None) -> int:
    """Start Ray, the controller, the gateway, and what was served before. Running already: nothing changes."""
    return run(_up(Session(inventory), wheels))


async def _up(session: Session, wheels: Path | None) -> int:
    client = await session.find_controller()
    if client is not None and await session.is_complete(client):
        console.print(f"Running already. {session.endpoint_words(client)}")
        return Exit.DONE
    progress = Progress()
    try:
        client = await session.bring_up((), progress.passing, wheels)
    finally:
        progress.done()
    console.print(f"Up. {session.endpoint_words(client)}")
    return Exit.DONE
