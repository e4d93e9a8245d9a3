"""`sparkfleet up`: start every node of the fleet, and everything that is wanted."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, run
from sparkfleet.cli.watch import Progress
from sparkfleet.errors import NodeError
from sparkfleet.facts.node import ReadGpu
from sparkfleet.nodes import page_cache

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
    return run(_up(Session(inventory), wheels, json))


async def _up(session: Session, wheels: Path | None, json: bool) -> int:
    client = await session.find_controller()
    running = client is not None and await session.is_complete(client)
    if client is None or not running:
        progress = Progress(quiet=json)
        try:
            client = await session.bring_up((), progress.passing, wheels)
        finally:
            progress.done()
    if json:
        _print(session, client.address.endpoint, running)
        return Exit.DONE
    console.print(f"{'Running already' if running else 'Up'}. {session.endpoint_words(client)}")
    if not running:
        await _advise(session)
    return Exit.DONE


def _print(session: Session, endpoint: str, running: bool) -> None:
    print_json(
        {
            "version": OUTPUT_VERSION,
            "fleet": session.inventory.fleet,
            "up": True,
            "endpoint": endpoint,
            "changed": not running,
            "left_by_a_reboot": list(session.left_by_a_reboot),
        }
    )


async def _advise(session: Session) -> None:
    """What a person may want to do about the nodes that were brought up."""
    if session.left_by_a_reboot:
        names = ", ".join(session.left_by_a_reboot)
        console.print(
            f"After a reboot {names} does not come back by itself: it has neither systemd nor cron."
        )
    await _permissions(session)


async def _permissions(session: Session) -> None:
    """Print, for nodes with a GPU, what root would have to permit for engines to load with all the memory there is."""
    asked = await asyncio.gather(*(_lacks(session, name) for name in session.inventory.nodes))
    lacking = [name for name in asked if name]
    if not lacking:
        return
    console.print(
        f"\nOn {', '.join(lacking)} sparkfleet may not drop the page cache, which engines on unified memory cannot use."
        "\nOnce, on each of them, if you want it:"
    )
    for user in dict.fromkeys(session.inventory.nodes[name].user or getpass.getuser() for name in lacking):
        console.print(f"  {page_cache.how_to_permit(user)}", markup=False)


async def _lacks(session: Session, name: str) -> str:
    channel = session.channels[name]
    try:
        has_gpu = (await channel.run(ReadGpu.argv, timeout_s=20)).exit_code == 0
    except NodeError:
        return ""  # no driver, so nothing of this matters
    return name if has_gpu and not await page_cache.may_drop(channel) else ""
