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
from sparkfleet.cli.planning.plan_output import print_plans
from sparkfleet.errors import SpecError
from sparkfleet.fleet.deployments.generations import prepare_scale
from sparkfleet.fleet.session import Session

MOST_REPLICAS = 1024
"""As in a deployment's file."""


def scale(
    name: NameArgument,
    replicas: Annotated[
        int,
        typer.Argument(
            help=f"Number of engine instances, 1 to {MOST_REPLICAS}.", metavar="N", show_default=False
        ),
    ],
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
) -> int:
    """Run another number of replicas. Engines that stay are not restarted. The deployment's file does not change."""
    if not 1 <= replicas <= MOST_REPLICAS:
        raise SpecError(
            f"{name} cannot have {replicas} replicas. Expected 1 to {MOST_REPLICAS}.",
            do=""
            if replicas > 0
            else f"`sparkfleet delete {name}` stops it; `on_demand: true` in its file lets it end without requests.",
        )
    return run(_scale(name, replicas, open_session(inventory), yes))


async def _scale(name: str, replicas: int, session: Session, yes: bool) -> int:
    prepared = await prepare_scale(session, name, replicas)
    print_plans(prepared.planned)
    prepared.planned.require_feasible()
    if prepared.changes_nothing:
        console.print(f"No change: {name} has {replicas} replica{'' if replicas == 1 else 's'}.")
        return Exit.DONE
    return await confirm_and_carry_out(session, prepared, f"Scale {name} to {replicas}?", yes)
