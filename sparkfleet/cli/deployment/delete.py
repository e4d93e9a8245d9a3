"""`sparkfleet delete`: stops serving a deployment."""

from __future__ import annotations

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    NameArgument,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.deployments.status import delete_deployment
from sparkfleet.fleet.session import Session


def delete(
    name: NameArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Stop serving a deployment. Requests in flight are finished first."""
    return run(_delete(name, open_session(inventory), yes, json))


async def _delete(name: str, session: Session, yes: bool, json: bool) -> int:
    with ProgressLine(quiet=json) as progress:
        await delete_deployment(session, name, lambda: confirm(f"Delete {name}?", yes), progress)
    if json:
        print_json({"version": OUTPUT_VERSION, "fleet": session.inventory.fleet, "deleted": name})
    else:
        console.print(f"{name} was deleted.")
    return Exit.DONE
