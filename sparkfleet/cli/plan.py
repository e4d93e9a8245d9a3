"""`sparkfleet plan`: what would be done, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, run
from sparkfleet.control.client import FleetClient
from sparkfleet.control.status import FleetStatus
from sparkfleet.control.survey import survey
from sparkfleet.facts.node import NodeFacts
from sparkfleet.planning.choose import plan_deployment
from sparkfleet.planning.diff import Change, compare
from sparkfleet.planning.explain import explain_change, explain_fleet, explain_plan
from sparkfleet.planning.plan import DeploymentPlan
from sparkfleet.spec.deployment import Deployment
from sparkfleet.spec.load import load_deployments
from sparkfleet.values import Value

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Deployment files.", metavar="FILE…", show_default=False)
]


class Planned(Value):
    """One deployment, planned, next to what is wanted now."""

    spec: Deployment
    plan: DeploymentPlan
    change: Change


def plan(
    files: FilesArgument, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """Show what `apply` would do, with its reasons. Changes nothing."""
    return run(_plan(files, inventory, json))


async def _plan(files: list[Path], inventory: Path, json: bool) -> int:
    specs = load_deployments(files)
    session = Session(inventory)
    client = await session.find_controller()
    facts = await survey(session.inventory, session.channels)
    planned = [decide(spec, facts, await current(client)) for spec in specs]
    if json:
        print_json({"version": OUTPUT_VERSION, "deployments": [p.model_dump(mode="json") for p in planned]})
    else:
        show(planned, facts, session.inventory.fleet)
    return Exit.PENDING if any(p.change.verb != "keep" for p in planned) else Exit.DONE


async def current(client: FleetClient | None) -> FleetStatus | None:
    """What runs now; None where the fleet is down."""
    if client is None:
        return None
    async with client:
        return await client.fleet()


def decide(spec: Deployment, facts: tuple[NodeFacts, ...], status: FleetStatus | None) -> Planned:
    """Plan one deployment and compare it with what is wanted now. Raises Infeasible."""
    before = _before(spec.name, status)
    held = _held(before[1]) if before else {}
    chosen = plan_deployment(spec, facts, held)
    return Planned(spec=spec, plan=chosen, change=compare(spec, chosen, before))


def show(planned: list[Planned], facts: tuple[NodeFacts, ...], fleet: str) -> None:
    """The plans for a person."""
    for one in planned:
        console.print(explain_fleet(one.spec, one.plan, facts, fleet))
        for line in explain_plan(one.plan):
            console.print(line)
        for line in explain_change(one.change):
            console.print(line)


def _before(name: str, status: FleetStatus | None) -> tuple[Deployment, DeploymentPlan] | None:
    for deployment in status.deployments if status else ():
        if deployment.name == name and deployment.plan is not None:
            return Deployment.model_validate_json(deployment.spec), deployment.plan
    return None


def _held(plan_now: DeploymentPlan) -> dict[str, int]:
    """Bytes per node that the groups that run now give back when they are replaced."""
    held: dict[str, int] = {}
    for group in plan_now.groups:
        for node in group.choice.candidate.shape.nodes:
            held[node] = held.get(node, 0) + int(group.choice.prediction.memory_bytes_per_rank.mid)
    return held
