"""`sparkfleet move-head`: moves the head of the fleet to another of its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from sparkfleet.controlplane.policy.state import GONE_S
from sparkfleet.errors import SpecError
from sparkfleet.fleet.lifecycle.lost_head import plan_lost
from sparkfleet.fleet.lifecycle.move_head import MovedHead, plan_move
from sparkfleet.fleet.lifecycle.move_head import move_head as move
from sparkfleet.fleet.lifecycle.move_plan import CheckedCopy, MovePlan
from sparkfleet.fleet.lifecycle.moved_inventory import inventory_after, name_head
from sparkfleet.fleet.lifecycle.undo_move import undo_move, unreached_lines
from sparkfleet.fleet.session import Session
from sparkfleet.units import duration_words, moment_words


def move_head(  # noqa: PLR0917  # its parameters are the command line's
    node: Annotated[str, typer.Argument(help="The node that becomes the head.", metavar="NODE")],
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Undo a move to NODE that was interrupted.")
    ] = False,
    lost: Annotated[
        bool,
        typer.Option(
            "--lost", help="The head is lost: NODE takes its place, with the copy that a node keeps."
        ),
    ] = False,
    json: JsonOption = False,
) -> int:
    """Move the head to another node, with deployments, keys and secrets. Running engines are kept."""
    if cancel and lost:
        raise SpecError("`--cancel` and `--lost` exclude each other.", do="Give one of them.")
    if cancel:
        return run(_cancel(open_session(inventory), node))
    return run(_move(open_session(inventory), inventory, node, lost=lost, yes=yes, json=json))


async def _move(session: Session, file: Path, node: str, *, lost: bool, yes: bool, json: bool) -> int:
    plan, before = await (plan_lost if lost else plan_move)(session, node), session.inventory
    confirm(_question(session, plan), yes)
    with ProgressLine(quiet=json) as progress:
        moved = await move(session, plan, progress)
    named = name_head(file, before, inventory_after(before, plan.new, plan.host))
    endpoint = moved.address.endpoint if moved.address else ""
    if json:
        fleet = {"version": OUTPUT_VERSION, "fleet": session.inventory.fleet}
        done = {"head": plan.new, "endpoint": endpoint or None, "inventory_changed": named}
        print_json({**fleet, **done, "lost": plan.old if lost else None})
        return Exit.DONE
    console.print(f"{plan.new} is the head of fleet {session.inventory.fleet}.", markup=False)
    fields = f"`head: {plan.new}`" + (
        f" and `gateway: {{host: {plan.host}}}`" if plan.host != before.gateway.host else ""
    )
    where = f"{file} has {fields} now" if named else f"Set {fields} in {file}"
    console.print(f"{where}; other copies of the inventory need the same.", markup=False)
    console.print(f"Endpoint: {endpoint}" if endpoint else "`sparkfleet up` starts it.", markup=False)
    for line in _after_loss(plan, moved) if lost else _after_move(plan, moved):
        console.print(line, markup=False)
    return Exit.DONE


def _after_move(plan: MovePlan, moved: MovedHead) -> Iterator[str]:
    if not moved.finds:
        yield (
            f"The port of the fleet's Ray is taken on {plan.new}, so a head that was lost before, and replaced, would come"
            " back as a second head: once it is on, `sparkfleet up` makes it an ordinary node."
        )


def _after_loss(plan: MovePlan, moved: MovedHead) -> Iterator[str]:
    """Lines on what follows the replacement of a lost head, if the fleet is up."""
    if moved.address is None:
        return
    yield (
        f"What needed {plan.old} goes on without it after about {duration_words(GONE_S)}, if its plan has a rung for"
        f" that: `sparkfleet status`. `sparkfleet drain {plan.old}` moves at once what fits elsewhere."
    )
    if others := [name for name in plan.absent if name != plan.old]:
        yield f"{', '.join(others)}: not reached, and connected to {plan.old} only. Once on, `sparkfleet up` takes it in."
    if moved.finds:
        yield f"If {plan.old} comes back with its disk, it joins as an ordinary node; its store is set aside there."
    else:
        yield (
            f"The port of {plan.old}'s Ray is taken on {plan.new}, so {plan.old} would come back as a second head: once it"
            " is on, `sparkfleet up` makes it an ordinary node."
        )


def _question(session: Session, plan: MovePlan) -> str:
    fleet = session.inventory.fleet
    if plan.settled:
        return f"{plan.new} is the head of fleet {fleet} already. Let the other nodes join it?"
    if plan.lost is not None and plan.lost.kept is not None:
        return _question_of_loss(fleet, plan, plan.lost.kept)
    means = (
        "Engines go on; the endpoint moves with the head and is away for some seconds."
        if plan.live
        else "The fleet is down: its state is moved."
    )
    return f"Move the head of fleet {fleet} from {plan.old} to {plan.new}? {means}"


def _question_of_loss(fleet: str, plan: MovePlan, kept: CheckedCopy) -> str:
    copy = kept.copy
    age = duration_words(max(0.0, time.time() - copy.at))
    served = ", ".join(copy.deployments) or "no deployment"
    return (
        f"{plan.old} is not reached. {kept.node} keeps a copy of its store of {moment_words(copy.at)}, {age} old: {served}."
        " What was applied since then is lost, and so are keys that were made since.\n"
        f"If {plan.old} runs and is only cut off, it serves on until it reaches {plan.new}: switch it off.\n"
        f"Make {plan.new} the head of fleet {fleet} with this copy?"
    )


async def _cancel(session: Session, node: str) -> int:
    with ProgressLine() as progress:
        unreached = await undo_move(session, node, progress)
    console.print(f"{session.inventory.head} is the head, as before.", markup=False)
    for line in unreached_lines(node, unreached):
        console.print(line, markup=False)
    return Exit.DONE
