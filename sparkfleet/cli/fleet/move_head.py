"""`sparkfleet move-head`: moves the head of the fleet to another of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.lifecycle.move_head import MovePlan, name_head, plan_move, undo_move
from sparkfleet.fleet.lifecycle.move_head import move_head as move
from sparkfleet.fleet.session import Session


def move_head(
    node: Annotated[str, typer.Argument(help="The node that becomes the head.", metavar="NODE")],
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Undo a move to NODE that was interrupted.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Move the head to another node, with deployments, keys and secrets. Running engines are kept."""
    if cancel:
        return run(_cancel(open_session(inventory), node))
    return run(_move(open_session(inventory), inventory, node, yes, json))


async def _move(session: Session, file: Path, node: str, yes: bool, json: bool) -> int:
    plan = await plan_move(session, node)
    confirm(_question(session, plan), yes)
    with ProgressLine(quiet=json) as progress:
        moved = await move(session, plan, progress)
    named = name_head(file, plan.old, plan.new)
    endpoint = moved.address.endpoint if moved.address else ""
    if json:
        fleet = {"version": OUTPUT_VERSION, "fleet": session.inventory.fleet}
        print_json({**fleet, "head": plan.new, "endpoint": endpoint or None, "inventory_changed": named})
        return Exit.DONE
    console.print(f"{plan.new} is the head of fleet {session.inventory.fleet}.", markup=False)
    where = f"{file} has `head: {plan.new}` now" if named else f"Set `head: {plan.new}` in {file}"
    console.print(f"{where}; other copies of the inventory need the same.", markup=False)
    console.print(f"Endpoint: {endpoint}" if endpoint else "`sparkfleet up` starts it.", markup=False)
    return Exit.DONE


def _question(session: Session, plan: MovePlan) -> str:
    fleet = session.inventory.fleet
    if plan.settled:
        return f"{plan.new} is the head of fleet {fleet} already. Let the other nodes join it?"
    means = (
        "Engines go on; the endpoint moves with the head and is away for some seconds."
        if plan.live
        else "The fleet is down: its state is moved."
    )
    return f"Move the head of fleet {fleet} from {plan.old} to {plan.new}? {means}"


async def _cancel(session: Session, node: str) -> int:
    with ProgressLine() as progress:
        await undo_move(session, node, progress)
    console.print(f"{session.inventory.head} is the head, as before.", markup=False)
    return Exit.DONE
