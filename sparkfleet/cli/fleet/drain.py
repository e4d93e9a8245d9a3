"""`sparkfleet drain` and `sparkfleet undrain`: take a node or a group out of use, and back."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.deployment.apply import print_outcome
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, open_session, run
from sparkfleet.cli.output import console
from sparkfleet.cli.planning.plan_output import print_plans
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.lifecycle.drain import (
    PreparedDrain,
    PreparedGroupDrain,
    carry_out_drain,
    drain_group,
    is_group,
    prepare_drain,
    prepare_group_drain,
    undrain_group,
    undrain_node,
)
from sparkfleet.fleet.session import Session
from sparkfleet.units import plural

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="A node, or a group by its name: DEPLOYMENT/gN/N, such as qwen/g3/0.",
        metavar="NODE|GROUP",
        show_default=False,
    ),
]


def drain(
    target: TargetArgument, inventory: InventoryOption = DEFAULT_INVENTORY, yes: YesOption = False
) -> int:
    """Move what runs on a node to the others, and start nothing on it until `undrain`; or let a group finish.

    Nothing changes if what runs on the node does not fit elsewhere. A group gets no new requests; its engine goes on.
    """
    session = open_session(inventory)
    return run(_drain_group(target, session, yes) if is_group(target) else _drain(target, session, yes))


def undrain(target: TargetArgument, inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Let a drained node be used again, which starts only what waits for it; or let a drained group get requests."""
    session = open_session(inventory)
    return run(_undrain_group(target, session) if is_group(target) else _undrain(target, session))


async def _drain(node: str, session: Session, yes: bool) -> int:
    prepared = await prepare_drain(session, node)
    if prepared.drained and prepared.apply is None:
        console.print(f"No change: {node} is drained, and nothing runs on it.")
        return Exit.DONE
    if prepared.apply is not None:
        print_plans(prepared.apply.planned)
        prepared.require_movable()
    confirm(f"Drain {node}{_moved(prepared)}?", yes)
    with ProgressLine() as progress:
        applied = await carry_out_drain(session, prepared, progress)
    if applied is not None:
        print_outcome(applied.settled)
        if applied.failed:
            console.print(f"{node} is drained, and what could not be moved serves from it as before.")
            return Exit.ERROR
    console.print(
        f"{node} is drained: nothing runs on it. `sparkfleet undrain {node}` lets it be used again."
    )
    if prepared.stays:
        start = "starts" if len(prepared.stays) == 1 else "start"
        console.print(f"{', '.join(prepared.stays)}, on demand, {start} after that: no other node has room.")
    if node == session.inventory.head:
        console.print(
            f"{node} is the head: controller, gateway and Ray are still on it. `sparkfleet move-head NODE` moves them."
        )
    return Exit.DONE


def _moved(prepared: PreparedDrain) -> str:
    names = [one.spec.name for one in prepared.apply.planned.decision.pending] if prepared.apply else []
    return f" and move {', '.join(names)}" if names else ""


async def _undrain(node: str, session: Session) -> int:
    await undrain_node(session, node)
    console.print(
        f"{node} may be used again. `sparkfleet rollback NAME` moves a deployment back to it, `sparkfleet apply FILE` plans"
        " with it."
    )
    return Exit.DONE


async def _drain_group(name: str, session: Session, yes: bool) -> int:
    prepared = await prepare_group_drain(session, name)
    if not prepared.drained:
        confirm(f"Drain {name}? {_meaning(prepared)}", yes)
    with ProgressLine() as progress:
        late = await drain_group(session, name, progress)
    _name_late(late)
    console.print(
        f"{name} is drained: no request runs on it, and its engine goes on. `sparkfleet undrain {name}` brings it back."
    )
    return Exit.DONE


def _meaning(prepared: PreparedGroupDrain) -> str:
    deployment = prepared.group.partition("/")[0]
    runs = f"What runs on it ends first: {plural(prepared.running, 'request')}. " if prepared.running else ""
    if not prepared.others:
        return f"{runs}No other group of {deployment} serves: until `undrain`, requests for {deployment} get 503."
    return f"{runs}New requests go to {plural(prepared.others, 'other group')} of {deployment}."


async def _undrain_group(name: str, session: Session) -> int:
    _name_late(await undrain_group(session, name))
    console.print(f"{name} gets requests again.")
    return Exit.DONE


def _name_late(late: tuple[str, ...]) -> None:
    if late:
        console.print(
            f"{', '.join(late)} did not confirm: the old routing table is used there until it does."
        )
