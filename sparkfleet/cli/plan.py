"""`sparkfleet plan`: what would be done, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from sparkfleet.cli.assume import assume
from sparkfleet.cli.checkpoints import checkpoints_of
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, Session, run
from sparkfleet.control.client import FleetClient
from sparkfleet.control.status import FleetStatus
from sparkfleet.control.survey import survey
from sparkfleet.engines.registry import ENGINES
from sparkfleet.errors import SparkfleetError
from sparkfleet.facts.node import NodeFacts
from sparkfleet.planning.choose import plan_deployment, plan_fleet
from sparkfleet.planning.diff import Change, compare
from sparkfleet.planning.explain import (
    explain_change,
    explain_fleet,
    explain_nodes,
    explain_plan,
    explain_refusal,
    explain_why,
)
from sparkfleet.planning.fleet import Fleet, links_of
from sparkfleet.planning.plan import DeploymentPlan, Plan
from sparkfleet.spec.deployment import Deployment
from sparkfleet.spec.load import load_deployments
from sparkfleet.values import Value

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Deployment files.", metavar="FILE…", show_default=False)
]
AssumeOption = Annotated[
    str | None,
    typer.Option(
        "--assume",
        metavar="KIND|FILE",
        help="Plan without asking the nodes: as if each were a `dgx-spark` (or `dgx-spark-64`), or by a file of facts.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Show every candidate that was not taken.")]
WhyOption = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="CANDIDATE",
        help='Everything about candidates in whose name these words are: "TP=2".',
    ),
]


class Planned(Value):
    """One deployment, planned, next to what is wanted now."""

    spec: Deployment
    plan: DeploymentPlan
    change: Change


class Shown(NamedTuple):
    """How much of a plan is shown, and how."""

    everything: bool = False
    why: str | None = None
    json: bool = False


def plan(  # noqa: PLR0917  # its parameters are the command line's
    files: FilesArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    assumed: AssumeOption = None,
    everything: AllOption = False,
    why: WhyOption = None,
    json: JsonOption = False,
) -> int:
    """Show what `apply` would do, with its reasons. Changes nothing."""
    shown = Shown(everything, why, json)
    return run(_plan(files, inventory, assumed, shown))


async def _plan(files: list[Path], inventory: Path, assumed: str | None, shown: Shown) -> int:
    specs = load_deployments(files)
    session = Session(inventory)
    client = await session.find_controller()
    if assumed is None:
        facts = await survey(session.inventory, session.channels)
    else:
        facts = assume(assumed, session.inventory)
    fleet = Fleet(
        name=session.inventory.fleet,
        nodes=facts,
        links=links_of(session.inventory),
        assumed=() if assumed is None else tuple(node.name for node in facts),
    )
    status = await current(client)
    found = plan_fleet(specs, fleet, checkpoints_of(specs, facts), _running(status))
    planned = [_planned(spec, one, status) for spec in specs if (one := found.of(spec.name)) is not None]
    if shown.json:
        _print(planned, found, fleet)
    else:
        _tell(specs, planned, found, fleet, shown)
    if found.refused:
        return Exit.INFEASIBLE
    return Exit.PENDING if any(one.change.verb != "keep" for one in planned) else Exit.DONE


async def current(client: FleetClient | None) -> FleetStatus | None:
    """What runs now; None where the fleet is down."""
    if client is None:
        return None
    async with client:
        return await client.fleet()


def decide(spec: Deployment, facts: tuple[NodeFacts, ...], status: FleetStatus | None) -> Planned:
    """Plan one deployment so that it can be carried out, and compare it with what is wanted now.

    Raises:
        Infeasible: nothing fits.
        SparkfleetError: what fits cannot be launched by this version.
    """
    before = _before(spec.name, status)
    held = _held(before[1]) if before else {}
    chosen = plan_deployment(spec, facts, held, checkpoints=checkpoints_of([spec], facts))
    _check_launchable(chosen)
    return _planned(spec, chosen, status)


def show(planned: list[Planned], facts: tuple[NodeFacts, ...], fleet: str) -> None:
    """The plans for a person."""
    for one in planned:
        console.print(explain_fleet(one.spec, one.plan, facts, fleet))
        for line in (*explain_plan(one.plan), *explain_change(one.change, one.plan)):
            console.print(line)


def _check_launchable(plan: DeploymentPlan) -> None:
    """This version starts engines as processes of one rank; more is planned, and said to be no more than that."""
    candidates = [group.choice.candidate for group in plan.groups]
    for candidate in candidates:
        alike = candidate == candidates[0]
        if (
            candidate.runtime == "process"
            and candidate.shape.ranks == 1
            and candidate.engine in ENGINES
            and alike
        ):
            continue
        raise SparkfleetError(
            f"{plan.name}: {candidate} is planned, and this version cannot launch it.",
            means="It launches one-rank groups of engines that are installed on the node, all alike.",
            do="`sparkfleet plan` shows everything there is to know about it until a later version can.",
        )


def _planned(spec: Deployment, plan: DeploymentPlan, status: FleetStatus | None) -> Planned:
    return Planned(spec=spec, plan=plan, change=compare(spec, plan, _before(spec.name, status)))


def _tell(
    specs: Sequence[Deployment], planned: list[Planned], found: Plan, fleet: Fleet, shown: Shown
) -> None:
    changes = {one.spec.name: one.change for one in planned}
    refusals = {one.name: one for one in found.refused}
    for spec in specs:
        plan, refusal = found.of(spec.name), refusals.get(spec.name)
        console.print(
            explain_fleet(spec, plan, fleet.nodes, fleet.name, links=fleet.links, assumed=fleet.assumed)
        )
        rejected = plan.rejected if plan else refusal.rejected if refusal else ()
        if shown.why is not None:
            lines = explain_why(plan, rejected, shown.why)
        elif plan is not None:
            lines = [
                *explain_plan(plan, everything=shown.everything),
                *explain_change(changes[spec.name], plan),
            ]
        else:
            lines = [*explain_refusal(refusals[spec.name], everything=shown.everything), *_hint(fleet)]
        for line in lines:
            console.print(line, markup=False)
        console.print()
    if len(specs) > 1:
        for line in explain_nodes(found.nodes):
            console.print(line)


def _hint(fleet: Fleet) -> list[str]:
    """For those who have no Spark yet, or are not at it."""
    if any(node.gpu for node in fleet.nodes):
        return []
    return ["  hint        no node here has a GPU; `--assume dgx-spark` plans as if each were a Spark"]


def _print(planned: list[Planned], found: Plan, fleet: Fleet) -> None:
    print_json(
        {
            "version": OUTPUT_VERSION,
            "deployments": [one.model_dump(mode="json") for one in planned],
            "refused": [one.model_dump(mode="json") for one in found.refused],
            "nodes": [one.model_dump(mode="json") for one in found.nodes],
            "assumed": list(fleet.assumed),
        }
    )


def _running(status: FleetStatus | None) -> dict[str, DeploymentPlan]:
    return {one.name: one.plan for one in status.deployments if one.plan is not None} if status else {}


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
