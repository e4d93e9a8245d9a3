"""`sparkfleet plan`: what would be done, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from sparkfleet.cli.assume import assume
from sparkfleet.cli.checkpoints import checkpoints_of, checkpoints_on
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.measured import measured_lines, measurements_of
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json, print_line
from sparkfleet.cli.session import DEFAULT_INVENTORY, InventoryOption, JsonOption, OfflineOption, Session, run
from sparkfleet.control.client import FleetClient
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.status import FleetStatus
from sparkfleet.control.survey import survey
from sparkfleet.errors import NodeError
from sparkfleet.fabric.measure import load_measurements, measured_links
from sparkfleet.facts.checkpoint import Checkpoint
from sparkfleet.planning.choose import plan_fleet
from sparkfleet.planning.diff import Change, Verb, compare
from sparkfleet.planning.explain import (
    explain_change,
    explain_fleet,
    explain_measured,
    explain_nodes,
    explain_plan,
    explain_refusal,
    explain_why,
)
from sparkfleet.planning.fleet import Fleet, links_of
from sparkfleet.planning.plan import DeploymentPlan, Plan, Refusal
from sparkfleet.planning.remembered import without_failed
from sparkfleet.planning.tags import digests_of, with_digests
from sparkfleet.spec.deployment import Deployment
from sparkfleet.spec.load import load_deployments
from sparkfleet.values import Value

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Deployment files.", metavar="FILE", show_default=False)
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


_WITHOUT_NODES = "`--assume dgx-spark` plans without asking the nodes."


class Planned(Value):
    """One deployment, planned, next to what is wanted now."""

    spec: Deployment
    plan: DeploymentPlan
    change: Change
    measured: tuple[str, ...] = ()
    """What its groups have measured, each next to what was predicted when they were planned."""


class Decided(NamedTuple):
    """What becomes of all deployments of a command line."""

    plan: Plan
    planned: list[Planned]
    """Those that fit, in the order in which they were asked for."""

    @property
    def pending(self) -> list[Planned]:
        """Those of which something would change."""
        return [one for one in self.planned if one.change.verb != "keep"]


class Shown(NamedTuple):
    """How much of a plan is shown, and how."""

    everything: bool = False
    why: str | None = None
    json: bool = False


SHORT = Shown()


def plan(  # noqa: PLR0917  # its parameters are the command line's
    files: FilesArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    assumed: AssumeOption = None,
    everything: AllOption = False,
    why: WhyOption = None,
    offline: OfflineOption = False,
    json: JsonOption = False,
) -> int:
    """Show what `apply` would do, with its reasons. Changes nothing."""
    shown = Shown(everything, why, json)
    return run(_plan(files, inventory, assumed, shown))


async def _plan(files: list[Path], inventory: Path, assumed: str | None, shown: Shown) -> int:
    specs = load_deployments(files)
    session = Session(inventory)
    try:
        fleet = await fleet_of(session, assumed)
    except NodeError as error:
        raise NodeError(error.what, means=error.means, do=f"{error.do}\n{_WITHOUT_NODES}".strip()) from None
    # On assumed nodes nothing is asked, so nothing runs.
    status = await current(await session.find_controller()) if assumed is None else None
    checkpoints = await checkpoints_for(session, specs, fleet)
    decided = decide(specs, fleet, status, checkpoints)
    if shown.json:
        _print(decided, fleet)
    else:
        tell(specs, decided, fleet, shown)
        tell_origins(checkpoints)
    if decided.plan.refused:
        return Exit.INFEASIBLE
    return Exit.PENDING if decided.pending else Exit.DONE


async def fleet_of(session: Session, assumed: str | None = None) -> Fleet:
    """The fleet as its nodes say it is, or as it is assumed to be."""
    name = session.inventory.fleet
    if assumed is not None:
        facts = assume(assumed, session.inventory)
        nodes = tuple(node.name for node in facts)
        return Fleet(name=name, nodes=facts, links=links_of(session.inventory), assumed=nodes)
    facts = await survey(session.inventory, session.channels)
    links = measured_links(session.inventory, load_measurements(FleetPaths.default(name).links))
    return Fleet(name=name, nodes=facts, links=links)


async def checkpoints_for(
    session: Session, specs: Sequence[Deployment], fleet: Fleet
) -> dict[str, Checkpoint]:
    """The facts of the checkpoints, from this machine, and where it lacks them from the nodes, unless those are assumed."""
    if fleet.assumed:
        return checkpoints_of(specs, fleet.nodes)
    return await checkpoints_on(specs, fleet.nodes, session.inventory, session.channels)


async def current(client: FleetClient | None) -> FleetStatus | None:
    """What runs now; None where the fleet is down."""
    if client is None:
        return None
    async with client:
        return await client.fleet()


def decide(
    specs: Sequence[Deployment],
    fleet: Fleet,
    status: FleetStatus | None,
    checkpoints: Mapping[str, Checkpoint],
    *,
    renew: bool = False,
    retry: bool = False,
) -> Decided:
    """Plan deployments together, and compare those that fit with what is wanted now.

    Args:
        specs: what is asked for.
        fleet: the nodes.
        status: what runs now; None where the fleet is down.
        checkpoints: facts, by model.
        renew: whether what is deployed gives up the digests that its images' tags were found to stand for.
        retry: whether what is remembered not to start is tried, and what runs at a lower rung begins at the top once more.
    """
    found = planned_with(specs, fleet, status, checkpoints)
    planned = [
        _planned(spec, one, status, renew=renew, retry=retry)
        for spec in specs
        if (one := found.of(spec.name)) is not None
    ]
    return Decided(found, planned)


def planned_with(
    specs: Sequence[Deployment],
    fleet: Fleet,
    status: FleetStatus | None,
    checkpoints: Mapping[str, Checkpoint],
) -> Plan:
    """The plan with what this fleet has measured of what it runs.

    What runs as it is asked for is not replaced because of a number: applying twice changes nothing. Where measurements
    would do that, the plan is made without them.
    """
    own = measurements_of(status)
    plain = plan_fleet(specs, fleet, checkpoints, _running(status))
    if not own:
        return plain
    informed = plan_fleet(specs, fleet, checkpoints, _running(status), own)
    kept = [spec for spec in specs if _change(spec, plain, status) == "keep"]
    return informed if all(_change(spec, informed, status) == "keep" for spec in kept) else plain


def _change(spec: Deployment, plan: Plan, status: FleetStatus | None) -> Verb | None:
    """What the plan does with a deployment; None where it refuses it."""
    found = plan.of(spec.name)
    if found is None:
        return None
    return compare(spec, _as_deployed(found, status), _before(spec.name, status)).verb


def _as_deployed(plan: DeploymentPlan, status: FleetStatus | None) -> DeploymentPlan:
    """The plan with the digests under which the deployment's tags are deployed: a tag that moves replaces nothing."""
    return with_digests(plan, digests_of(_running(status).get(plan.name)))


def _lines(one: Planned, *, everything: bool = False) -> tuple[str, ...]:
    return (
        *explain_plan(one.plan, everything=everything),
        *explain_measured(one.measured),
        *explain_change(one.change, one.plan),
    )


def _planned(
    spec: Deployment,
    plan: DeploymentPlan,
    status: FleetStatus | None,
    *,
    renew: bool = False,
    retry: bool = False,
) -> Planned:
    before = _before(spec.name, status)
    plan = plan if renew else _as_deployed(plan, status)
    change = compare(spec, plan, before)
    if change.verb != "keep" and not retry:  # what runs, at whatever rung, is left alone
        plan = without_failed(plan, status.failures if status else ())
        change = compare(spec, plan, before)
    lowest = _lowest(spec.name, status)
    if change.verb == "keep" and retry and lowest:
        change = Change(verb="change", name=spec.name, fields=(f"rung: {lowest + 1} → 1",))
    runs = next((one for one in status.deployments if one.name == spec.name), None) if status else None
    measured = tuple(measured_lines(runs)) if runs else ()
    return Planned(spec=spec, plan=plan, change=change, measured=measured)


def tell(specs: Sequence[Deployment], decided: Decided, fleet: Fleet, shown: Shown = SHORT) -> None:
    """Every plan and every refusal for a person, each with an empty line behind it."""
    planned = {one.spec.name: one for one in decided.planned}
    refused = {one.name: one for one in decided.plan.refused}
    for spec in specs:
        if spec.name in refused:
            lines = refusal_lines(spec, refused[spec.name], fleet, shown)
        else:
            lines = _plan_lines(planned[spec.name], fleet, shown)
        for line in lines:
            print_line(line)
        console.print()
    if len(specs) > 1:
        for line in explain_nodes(decided.plan.nodes):
            print_line(line)
        console.print()


def tell_origins(checkpoints: Mapping[str, Checkpoint]) -> None:
    """The origin of sizes that are from the Hub, or estimated because it could not be asked."""
    told = [(model, found.origin) for model, found in checkpoints.items() if found.origin]
    for model, origin in told:
        print_line(f"  sizes       {model}: {origin}")
    if told:
        console.print()


def _plan_lines(one: Planned, fleet: Fleet, shown: Shown) -> Iterator[str]:
    yield from _headline(one.spec, one.plan, fleet)
    if shown.why is not None:
        yield from explain_why(one.plan, one.plan.rejected, shown.why)
    else:
        yield from _lines(one, everything=shown.everything)


def refusal_lines(spec: Deployment, refusal: Refusal, fleet: Fleet, shown: Shown = SHORT) -> Iterator[str]:
    """Why a deployment cannot be served."""
    yield from _headline(spec, None, fleet)
    if shown.why is not None:
        yield from explain_why(None, refusal.rejected, shown.why)
    else:
        yield from explain_refusal(refusal, everything=shown.everything)
        yield from _hint(fleet)


def _headline(spec: Deployment, plan: DeploymentPlan | None, fleet: Fleet) -> Iterator[str]:
    """It ends with an empty line, which is one of its own: what breaks lines drops line ends."""
    said = explain_fleet(spec, plan, fleet.nodes, fleet.name, links=fleet.links, assumed=fleet.assumed)
    yield from said.split("\n")


def _hint(fleet: Fleet) -> list[str]:
    """For those who have no Spark yet, or are not at it."""
    if any(node.gpu for node in fleet.nodes):
        return []
    return ["  hint        no node here has a GPU; `--assume dgx-spark` plans as if each were a Spark"]


def _print(decided: Decided, fleet: Fleet) -> None:
    print_json(
        {
            "version": OUTPUT_VERSION,
            "deployments": [one.model_dump(mode="json") for one in decided.planned],
            "refused": [one.model_dump(mode="json") for one in decided.plan.refused],
            "nodes": [one.model_dump(mode="json") for one in decided.plan.nodes],
            "assumed": list(fleet.assumed),
        }
    )


def _running(status: FleetStatus | None) -> dict[str, DeploymentPlan]:
    return {one.name: one.plan for one in status.deployments if one.plan is not None} if status else {}


def _lowest(name: str, status: FleetStatus | None) -> int:
    """The lowest rung, from 0, at which a group of a deployment stands."""
    found = [one for one in status.deployments if one.name == name] if status else []
    return max((len(passed) for one in found for passed in one.passed), default=0)


def _before(name: str, status: FleetStatus | None) -> tuple[Deployment, DeploymentPlan] | None:
    """What is wanted now; None for what is given up: to apply it, even unchanged, is to ask for it once more."""
    for deployment in status.deployments if status else ():
        if deployment.name == name and deployment.plan is not None and deployment.state != "failed":
            return Deployment.model_validate_json(deployment.spec), deployment.plan
    return None
