"""`sparkfleet restart`: starts the engines of a deployment again."""

from __future__ import annotations

from sparkfleet.cli.deployment.apply import confirm_and_carry_out
from sparkfleet.cli.deployment.rollback import print_change
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    NameArgument,
    YesOption,
    open_session,
    run,
)
from sparkfleet.fleet.deployments.generations import prepare_restart
from sparkfleet.fleet.session import Session


def restart(
    name: NameArgument, inventory: InventoryOption = DEFAULT_INVENTORY, yes: YesOption = False
) -> int:
    """Start every engine of a deployment again. The old ones serve until then, or end in turn if memory is short."""
    return run(_restart(name, open_session(inventory), yes))


async def _restart(name: str, session: Session, yes: bool) -> int:
    prepared = await prepare_restart(session, name)
    print_change(prepared)
    return await confirm_and_carry_out(session, prepared, f"Restart {name}?", yes)
