"""Plans deployments on a fleet with its facts and measurements, and compares them with what runs. Starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import Infeasible, SpecError
from sparkfleet.fabric.link_measurements import load_measurements, measured_links
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.fleet.nodes.collect_facts import survey
from sparkfleet.fleet.nodes.surroundings import (
    SHOWING_S,
    NodeSurroundings,
    other_fleet_lines,
    surroundings_of,
)
from sparkfleet.fleet.planning.checkpoints import checkpoints_of, checkpoints_on, embedded_of
from sparkfleet.fleet.planning.fewer_bits import FewerBits, plans_with_fewer_bits
from sparkfleet.fleet.planning.group_measurements import measured_lines, measurements_of
from sparkfleet.fleet.planning.named_images import NamedImage, plans_with_named_images
from sparkfleet.fleet.planning.replanning import Replanning
from sparkfleet.fleet.planning.running import (
    desired_before,
    lowest_rung,
    memory_holds_both,
    replaced_groups,
    reported,
    running_groups,
    running_plans,
    silent_groups,
)
from sparkfleet.fleet.planning.start_obstacles import start_obstacles
from sparkfleet.fleet.planning.step_times import StepTimes, last_start_s, load_step_times
from sparkfleet.fleet.session import Session
from sparkfleet.perf.predictor import predicted_content, predictor_of
from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.planner.report.diff import Change, DiffVerb, compare
from sparkfleet.planner.report.prediction_terms import PredictionSum, prediction_sums
from sparkfleet.planner.report.rendezvous import open_rendezvous
from sparkfleet.planner.rules.failure_memory import without_failed
from sparkfleet.planner.search.planner import plan_fleet
from sparkfleet.planner.types.image_refs import digests_of, with_digests
from sparkfleet.planner.types.plan import DeploymentPlan, Plan
from sparkfleet.runtime.files import state_probe
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment, drafts_of
from sparkfleet.values import Value

if TYPE_CHECKING:  # slow imports, for a controller that answers
    from sparkfleet.controlplane.api.client import FleetClient
    from sparkfleet.controlplane.state.status import FleetStatus

FIRST_KEY = "default"
"""Name of the key that the first start of a fleet makes."""


class Planned(Value):
    """One deployment with its plan, and the change against the applied generation."""

    spec: Deployment
    plan: DeploymentPlan
    change: Change
    measured: tuple[str, ...] = ()
    """Measurements of its groups, each with the prediction of their plan."""


class FleetDecision(NamedTuple):
    """Plans for all deployments of a command line, and the change that each makes."""

    plan: Plan
    planned: list[Planned]
    """Deployments that fit, in the order of the command line."""

    @property
    def pending(self) -> list[Planned]:
        """Deployments that would change."""
        return [one for one in self.planned if one.change.verb != "keep"]


class FleetPlan(NamedTuple):
    """A plan with its fleet."""

    specs: tuple[Deployment, ...]
    fleet: Fleet
    status: FleetStatus | None
    """Status of the fleet when the plan was made; None if the fleet is down, or its nodes are assumed."""
    decision: FleetDecision
    client: FleetClient | None
    """Of the controller, not entered; None if the fleet is down, or its nodes are assumed."""
    checkpoints: Mapping[str, Checkpoint]
    """Facts, by model."""
    stored: Mapping[str, int] | None = None
    """If the fleet is down: the generation of each deployment in its store; None: not known."""
    around: Mapping[str, NodeSurroundings] = MappingProxyType({})
    """Parts that the nodes have in a fleet already."""

    def base_of(self, name: str) -> int | None:
        """Generation that a deployment's plan was made from; 0: there was none. None: not known, or it is being ended."""
        if self.status is None:
            return None if self.stored is None else self.stored.get(name, 0)
        found = self.status.named(name)
        if found is None:
            return 0
        return None if found.state == "stopping" else found.generation

    def prediction_sums(self, rung: int = 0) -> dict[str, tuple[PredictionSum, ...]]:
        """Terms of each deployment's predicted ITL and TTFT, by its name; empty if nothing is predicted.

        Args:
            rung: of the first group's ladder, from 0.

        Raises:
            SpecError: a ladder has no such rung.
        """
        return {one.spec.name: self._sums(one.plan, rung) for one in self.decision.planned}

    def fewer_bits(self) -> dict[str, tuple[FewerBits, ...]]:
        """Published checkpoints in fewer bits with which a deployment would be served, or served faster, by its name."""
        return plans_with_fewer_bits(self._replanning)

    def named_images(self) -> dict[str, tuple[NamedImage, ...]]:
        """Images that a plan takes only by name, with which a deployment would be served faster, by its name."""
        return plans_with_named_images(self._replanning)

    @property
    def _replanning(self) -> Replanning:
        def replan(specs: Sequence[Deployment], checkpoints: Mapping[str, Checkpoint]) -> Plan:
            return planned_with(specs, self.fleet, self.status, checkpoints)

        return Replanning(self.specs, self.decision.plan, self.checkpoints, replan)

    def _sums(self, plan: DeploymentPlan, rung: int) -> tuple[PredictionSum, ...]:
        ladder = plan.groups[0].ladder
        if not 0 <= rung < len(ladder):
            raise SpecError(f"{plan.name}: there is no rung {rung + 1}; its ladder has {len(ladder)}.")
        checkpoint = self.checkpoints.get(ladder[rung].candidate.model)
        if checkpoint is None:
            return ()
        drafts = tuple(
            (name, self.checkpoints[name]) for name in drafts_of(self.specs) if name in self.checkpoints
        )
        content = next(spec.content for spec in self.specs if spec.name == plan.name)
        predictor = predictor_of(checkpoint, (), drafts, predicted_content(content))
        return prediction_sums(predictor, self.fleet, plan.groups, rung)

    def require_feasible(self) -> None:
        """Raise Infeasible if any deployment cannot be served: then none of the others is applied either."""
        if not self.decision.plan.refused:
            return
        names = ", ".join(one.name for one in self.decision.plan.refused)
        raise Infeasible(
            f"Nothing was applied: this fleet cannot serve {names}.",
            do="Change the deployment or the inventory as the reasons above suggest, or leave its file out.",
        )


async def plan_deployments(
    session: Session,
    specs: Sequence[Deployment],
    assumed: str | None = None,
    *,
    renew: bool = False,
    retry: bool = False,
    without: Collection[str] = (),
) -> FleetPlan:
    """Plan deployments on the fleet as it is, or on assumed nodes.

    Args:
        session: the fleet.
        specs: the deployments.
        assumed: a kind of Spark or a file of facts, see `assume`; None: read the facts of the nodes.
        renew: see `decide`.
        retry: see `decide`.
        without: nodes that are not used, beside the drained ones.

    Raises:
        NodeError: a node cannot be reached, or a command on it failed.
        FactError: a checkpoint cannot be found, or is of an unknown kind.
    """
    # Assumed nodes are never contacted, so nothing runs on them.
    client = await session.find_controller() if assumed is None else None
    status = None
    names_keys = any(spec.keys for spec in specs)
    known: Collection[str] | None = None
    if client is not None:
        async with client:
            specs = await client.sealed(specs)
            status = await client.fleet()
            known = [key.name for key in await client.keys()] if names_keys else None
    elif assumed is None and names_keys:
        known = await _stored_key_names(session)
    for line in missing_keys(specs, known) if known is not None else ():
        session.report(TroubleFound(line=line))
    drained = {one.node for one in status.drained} if status else set()
    fleet, around = await asyncio.gather(
        fleet_of(session, assumed, drained.union(without)), _around(session, assumed)
    )
    for line in other_fleet_lines(around):
        session.report(TroubleFound(line=line))
    checkpoints = await checkpoints_for(session, specs, fleet)
    decision = decide(specs, fleet, status, checkpoints, renew=renew, retry=retry)
    for line in open_rendezvous(decision.plan, fleet.exposed):
        session.report(TroubleFound(line=line))
    if assumed is None:
        running = [one.plan for one in status.deployments if one.plan] if status else []
        plans = [one.plan for one in decision.pending]
        for line in await start_obstacles(session.channels, plans, running, checkpoints):
            session.report(TroubleFound(line=line))
    times = load_step_times(FleetPaths.default(session.inventory.fleet).step_times)
    stored = around.get(session.inventory.head, NodeSurroundings()).generations
    decision = expecting(decision, times)
    return FleetPlan(tuple(specs), fleet, status, decision, client, checkpoints, stored, around)


async def _stored_key_names(session: Session) -> Collection[str] | None:
    """Names of the keys of a fleet that is down, with the one that its first start makes; None: its store is unreadable."""
    rows = (await session.access.probe(session.inventory.head, state_probe.keys))["keys"]
    return None if rows is None else [row["name"] for row in rows] or [FIRST_KEY]


def missing_keys(specs: Sequence[Deployment], known: Collection[str]) -> tuple[str, ...]:
    """A line for each deployment that names keys which do not exist. Pure."""
    return tuple(
        f"warning: {spec.name}: `keys:` names {', '.join(missing)}, which nobody has."
        f" `sparkfleet keys create {missing[0]}` makes it."
        for spec in specs
        if (missing := [name for name in spec.keys or () if name not in known])
    )


def expecting(decision: FleetDecision, times: StepTimes) -> FleetDecision:
    """The same with the time that the last start of the same took on this fleet."""
    return decision._replace(planned=[_expecting(one, times) for one in decision.planned])


def _expecting(one: Planned, times: StepTimes) -> Planned:
    took = last_start_s(times, one.plan) if one.change.starts else None
    return one.model_copy(update={"change": one.change.model_copy(update={"expected_s": took})})


async def _around(session: Session, assumed: str | None) -> dict[str, NodeSurroundings]:
    if assumed is not None:
        return {}
    return await surroundings_of(session.inventory, session.channels, SHOWING_S)


async def fleet_of(session: Session, assumed: str | None = None, without: Collection[str] = ()) -> Fleet:
    """The fleet with the facts that its nodes report, or with assumed ones, without drained nodes."""
    name, ports = session.inventory.fleet, session.inventory.endpoint_ports
    if assumed is not None:
        facts = assume(assumed, session.inventory)
        nodes = tuple(node.name for node in facts)
        links = links_of(session.inventory)
        return Fleet(name=name, nodes=facts, links=links, assumed=nodes, endpoint_ports=ports)
    facts = await survey(session.inventory, session.channels, without)
    found = measured_links(session.inventory, load_measurements(FleetPaths.default(name).links))
    links = tuple(link for link in found if not set(link.nodes) & set(without))
    closed = session.inventory.lan_rendezvous
    exposed = () if closed else tuple(node.name for node in facts if not node.fleet_firewall)
    drained = tuple(sorted(without))
    return Fleet(name=name, nodes=facts, links=links, drained=drained, exposed=exposed, endpoint_ports=ports)


async def checkpoints_for(
    session: Session, specs: Sequence[Deployment], fleet: Fleet
) -> dict[str, Checkpoint]:
    """Facts of the checkpoints from this machine, and from the nodes if it lacks the weights and they are not assumed."""
    if fleet.assumed:
        return checkpoints_of(specs, fleet.nodes)
    return await checkpoints_on(specs, fleet.nodes, session.inventory, session.channels)


def decide(
    specs: Sequence[Deployment],
    fleet: Fleet,
    status: FleetStatus | None,
    checkpoints: Mapping[str, Checkpoint],
    *,
    renew: bool = False,
    retry: bool = False,
) -> FleetDecision:
    """Plan deployments together, and compare those that fit with the applied generations.

    Args:
        specs: the deployments.
        fleet: the nodes.
        status: of the fleet; None if it is down.
        checkpoints: facts, by model.
        renew: drop the digests to which the tags of deployed images were resolved.
        retry: include rungs that are remembered as failed, start groups of a lower rung at rung 1 again, and size each
            replica for its share of `concurrency` again.
    """
    found = planned_with(specs, fleet, status, checkpoints, resized=retry)
    planned = [
        _planned(spec, one, status, renew=renew, retry=retry)
        for spec in specs
        if (one := found.of(spec.name)) is not None
    ]
    return FleetDecision(found, planned)


def planned_with(
    specs: Sequence[Deployment],
    fleet: Fleet,
    status: FleetStatus | None,
    checkpoints: Mapping[str, Checkpoint],
    *,
    resized: bool = False,
) -> Plan:
    """The plan with the fleet's own measurements; `resized`: what runs does not keep its share of `concurrency`.

    A running deployment is not replaced because of a measurement: applying twice changes nothing. If measurements would
    replace one, the plan is made without them.
    """
    own, embedded = measurements_of(status), embedded_of(specs)
    plain = plan_fleet(specs, fleet, checkpoints, running_plans(status), embedded=embedded, resized=resized)
    if not own:
        return plain
    informed = plan_fleet(
        specs, fleet, checkpoints, running_plans(status), own, embedded=embedded, resized=resized
    )
    kept = [spec for spec in specs if _change(spec, plain, status) == "keep"]
    return informed if all(_change(spec, informed, status) == "keep" for spec in kept) else plain


def _change(spec: Deployment, plan: Plan, status: FleetStatus | None) -> DiffVerb | None:
    """The change of a deployment; None if it is refused."""
    found = plan.of(spec.name)
    if found is None:
        return None
    return compare(
        spec,
        _as_deployed(found, status),
        desired_before(spec.name, status),
        running_groups(spec.name, status),
        replaced_groups(spec.name, status),
    ).verb


def _as_deployed(plan: DeploymentPlan, status: FleetStatus | None) -> DeploymentPlan:
    """The plan with the digests of the deployed images: a tag that moves replaces nothing."""
    return with_digests(plan, digests_of(running_plans(status).get(plan.name)))


def _planned(
    spec: Deployment,
    plan: DeploymentPlan,
    status: FleetStatus | None,
    *,
    renew: bool = False,
    retry: bool = False,
) -> Planned:
    before, running = desired_before(spec.name, status), running_groups(spec.name, status)
    replaced = replaced_groups(spec.name, status)
    plan = plan if renew else _as_deployed(plan, status)
    change = compare(spec, plan, before, running, replaced)
    if change.verb != "keep" and not retry:  # a running group keeps its rung
        plan = without_failed(plan, status.failures if status else ())
        change = compare(spec, plan, before, running, replaced)
    lowest = lowest_rung(spec.name, status)
    if change.verb == "keep" and retry and lowest:
        change = Change(
            verb="change",
            name=spec.name,
            fields=(f"rung: {lowest + 1} → 1",),
            starts=len(plan.groups),
            ends=tuple(one.name for one in running or ()),
        )
    if change.starts and change.ends:
        together = memory_holds_both(spec, plan, running or (), status)
        silent = silent_groups(spec.name, status).intersection(change.ends)
        change = change.model_copy(update={"together": together, "silent": tuple(sorted(silent))})
    runs = reported(spec.name, status)
    measured = tuple(measured_lines(runs)) if runs else ()
    return Planned(spec=spec, plan=plan, change=change, measured=measured)
