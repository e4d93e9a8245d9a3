"""`sparkfleet load` and `sparkfleet unload`: start and end what is on demand, without a request."""

from __future__ import annotations

from sparkfleet.cli.deployment.apply import print_outcome
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, NameArgument, open_session, run
from sparkfleet.cli.output import console
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.deployments.load import load_deployment, serves, unload_deployment
from sparkfleet.fleet.session import Session


def load(name: NameArgument, inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Start a deployment that is on demand, as its first request would, and wait until it serves."""
    return run(_load(name, open_session(inventory)))


def unload(name: NameArgument, inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """End a deployment that is on demand once its requests in flight have ended. Its next request starts it again."""
    return run(_unload(name, open_session(inventory)))


async def _load(name: str, session: Session) -> int:
    with ProgressLine() as progress:
        status, was_ready = await load_deployment(session, name, progress)
    if was_ready:
        console.print(f"No change: {name} is loaded.")
        return Exit.DONE
    print_outcome({name: status})
    return Exit.DONE if serves(status) else Exit.ERROR


async def _unload(name: str, session: Session) -> int:
    with ProgressLine() as progress:
        was_loaded, again = await unload_deployment(session, name, progress)
    if not was_loaded:
        console.print(f"No change: {name} is not loaded.")
    elif again:
        console.print(f"{name} was unloaded, and starts again: a request waits for it.")
    else:
        console.print(f"{name} is unloaded: its memory is free. Its next request starts it.")
    return Exit.DONE
