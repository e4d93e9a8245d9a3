"""`sparkfleet delete`: no longer serve a deployment."""

from __future__ import annotations

import typer

from sparkfleet.cli.describe import NameArgument, find
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import console
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, Session, YesOption, run, who
from sparkfleet.cli.watch import Progress, until_gone


def delete(name: NameArgument, inventory: InventoryOption = DEFAULT_INVENTORY, yes: YesOption = False) -> int:
    """Stop serving a deployment: what it still answers is finished first."""
    return run(_delete(name, Session(inventory), yes))


async def _delete(name: str, session: Session, yes: bool) -> int:
    async with await session.controller() as client:
        status = await client.fleet()
        find(status, name)
        if not yes:
            typer.confirm(f"Delete {name}?", abort=True)
        await client.delete(name, who())
        progress = Progress()
        try:
            await until_gone(client, name, status.last_event, progress)
        finally:
            progress.done()
    console.print(f"{name} is gone.")
    return Exit.DONE
