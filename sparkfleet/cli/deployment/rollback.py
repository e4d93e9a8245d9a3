"""`sparkfleet rollback`: applies an earlier generation of a deployment."""

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
from sparkfleet.cli.output import console, print_lines
from sparkfleet.fleet.deployments.apply import PreparedApply
from sparkfleet.fleet.deployments.generations import prepare_rollback
from sparkfleet.fleet.session import Session
from sparkfleet.planner.report.explain.change import explain_change


def rollback(
    name: NameArgument,
    generation: Annotated[
        int | None,
        typer.Argument(
            help="The generation; left out: the one before the current one.",
            metavar="GENERATION",
            show_default=False,
        ),
    ] = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
) -> int:
    """Go back to an earlier generation, with the plan that it had. Engines that still run are not restarted."""
    return run(_rollback(name, generation, open_session(inventory), yes))


async def _rollback(name: str, generation: int | None, session: Session, yes: bool) -> int:
    prepared = await prepare_rollback(session, name, generation)
    if prepared.changes_nothing:
        console.print(f"No change: {name} runs exactly that.")
        return Exit.DONE
    print_change(prepared)
    return await confirm_and_carry_out(session, prepared, f"Roll {name} back?", yes)


def print_change(prepared: PreparedApply) -> None:
    """Print the effect of a prepared apply, without the plan."""
    for one in prepared.planned.decision.planned:
        print_lines(explain_change(one.change, one.plan))
