"""`sparkfleet delete`: no longer serve a deployment."""

from __future__ import annotations

from sparkfleet.cli.agree import agree
from sparkfleet.cli.describe import NameArgument, find
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.session import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    Session,
    YesOption,
    run,
    who,
)
from sparkfleet.cli.watch import Progress, until_gone


def delete(
    name: NameArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Stop serving a deployment: what it still answers is finished first."""
    return run(_delete(name, Session(inventory), yes, json))


async def _delete(name: str, session: Session, yes: bool, json: bool) -> int:
    async with await session.controller() as client:
        status = await client.fleet()
        find(status, name)
        agree(f"Delete {name}?", yes)
        await client.delete(name, who())
        progress = Progress(quiet=json)
        try:
            await until_gone(client, name, status.last_event, progress)
        finally:
            progress.done()
    if json:
        print_json({"version": OUTPUT_VERSION, "fleet": session.inventory.fleet, "deleted": name})
    else:
        console.print(f"{name} is gone.")
    return Exit.DONE
