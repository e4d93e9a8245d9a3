"""`sparkfleet scale`: changes the number of replicas of a deployment."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.deployment.apply import confirm_and_carry_out
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    NameArgument,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import console
from sparkfleet.cli.planning.plan import print_plans
from sparkfleet.fleet.deployments.generations import prepare_scale
from sparkfleet.fleet.session import Session


def scale(
    name: NameArgument,
    replicas: Annotated[
        int,
        typer.Argument(help="Number of engine instances.", metavar="N", min=1, max=1024, show_default=False),
    ],
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
) -> int:
    """Run another number of replicas. Engines that stay are not restarted. The deployment's file does not change."""
    return run(_scale(name, replicas, open_session(inventory), yes))


async def _scale(name: str, replicas: int, session: Session, yes: bool) -> int:
    prepared = await prepare_scale(session, name, replicas)
    print_plans(prepared.planned)
    prepared.planned.require_feasible()
    if prepared.changes_nothing:
        console.print(f"No change: {name} has {replicas} replica{'' if replicas == 1 else 's'}.")
        return Exit.DONE
    return await confirm_and_carry_out(session, prepared, f"Scale {name} to {replicas}?", yes)
