"""`sparkfleet drain` and `sparkfleet undrain`: take a node out of use, and back."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.deployment.apply import print_outcome
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, YesOption, open_session, run
from sparkfleet.cli.output import console
from sparkfleet.cli.planning.plan import print_plans
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.lifecycle.drain import PreparedDrain, carry_out_drain, prepare_drain, undrain_node
from sparkfleet.fleet.session import Session

NodeArgument = Annotated[str, typer.Argument(help="The node's name.", metavar="NODE", show_default=False)]


def drain(node: NodeArgument, inventory: InventoryOption = DEFAULT_INVENTORY, yes: YesOption = False) -> int:
    """Move what runs on a node to the others, and start nothing on it until `undrain`.

    Changes nothing if it does not fit there.
    """
    return run(_drain(node, open_session(inventory), yes))


def undrain(node: NodeArgument, inventory: InventoryOption = DEFAULT_INVENTORY) -> int:
    """Let a drained node be used again. Starts only what waits for it."""
    return run(_undrain(node, open_session(inventory)))


async def _drain(node: str, session: Session, yes: bool) -> int:
    prepared = await prepare_drain(session, node)
    if prepared.drained and prepared.apply is None:
        console.print(f"No change: {node} is drained, and nothing runs on it.")
        return Exit.DONE
    if prepared.apply is not None:
        planned = prepared.apply.planned
        print_plans(planned.specs, planned.decided, planned.fleet)
        planned.require_feasible()
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
    if node == session.inventory.head:
        console.print(
            f"{node} is the head: controller, gateway and Ray are still on it. `sparkfleet move-head NODE` moves them."
        )
    return Exit.DONE


def _moved(prepared: PreparedDrain) -> str:
    names = [one.spec.name for one in prepared.apply.planned.decided.pending] if prepared.apply else []
    return f" and move {', '.join(names)}" if names else ""


async def _undrain(node: str, session: Session) -> int:
    await undrain_node(session, node)
    console.print(f"{node} may be used again. `sparkfleet apply FILE` places deployments on it.")
    return Exit.DONE
