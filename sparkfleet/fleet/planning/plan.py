"""Reads a fleet and the checkpoints, and plans deployments on it. Starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.controlplane.views.speculation_advice import (
    SpeculationAdvice,
    acceptances_of,
    advice_for,
)
from sparkfleet.errors import Infeasible, SpecError
from sparkfleet.fabric.link_measurements import load_measurements, measured_links
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.fleet.nodes.collect_facts import collect_facts
from sparkfleet.fleet.nodes.surroundings import (
    SHOWING_S,
    NodeSurroundings,
    other_fleet_lines,
    surroundings_of,
)
from sparkfleet.fleet.planning.checkpoints import checkpoints_of, checkpoints_on
from sparkfleet.fleet.planning.fewer_bits import FewerBits, plans_with_fewer_bits
from sparkfleet.fleet.planning.fleet_decision import (
    FleetDecision,
    PlannedDeployment,
    decide,
    planned_with,
    with_expected_times,
)
from sparkfleet.fleet.planning.gguf_offers import GgufOffer, plans_with_ggufs
from sparkfleet.fleet.planning.named_images import NamedImage, plans_with_named_images
from sparkfleet.fleet.planning.published_names import misspelt_line
from sparkfleet.fleet.planning.replanning import Replanning
from sparkfleet.fleet.planning.start_obstacles import start_obstacles
from sparkfleet.fleet.planning.step_times import load_step_times
from sparkfleet.fleet.session import Session
from sparkfleet.perf.predictor import predictor_of
from sparkfleet.perf.workload import predicted_content
from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.planner.report.prediction_terms import PredictionSum, prediction_sums
from sparkfleet.planner.report.rendezvous import open_rendezvous
from sparkfleet.planner.types.plan import DeploymentPlan, Plan, Rung
from sparkfleet.runtime.files import state_probe
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment, drafts_of

if TYPE_CHECKING:  # slow imports, for a controller that answers
    from sparkfleet.controlplane.api.client import FleetClient
    from sparkfleet.controlplane.state.status import FleetStatus

FIRST_KEY = "default"
"""Name of the key that the first start of a fleet makes."""


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

    def ggufs(self) -> dict[str, tuple[GgufOffer, ...]]:
        """Published GGUFs with which a deployment would be served, or served faster, by its name."""
        return plans_with_ggufs(self._replanning)

    def named_images(self) -> dict[str, tuple[NamedImage, ...]]:
        """Images that a plan takes only by name, with which a deployment would be served faster, by its name."""
        return plans_with_named_images(self._replanning)

    def speculation(self) -> dict[str, tuple[SpeculationAdvice, ...]]:
        """Acceptance on the own requests of each deployment that runs, by its name, with the depths that it could have."""
        found: dict[str, tuple[SpeculationAdvice, ...]] = {}
        for one in self.decision.planned:
            now = self.status.named(one.spec.name) if self.status else None
            if now is not None and (advice := advice_for(now, one.plan)):
                found[one.spec.name] = tuple(map(partial(self._servable, one), advice))
        return found

    def _servable(self, planned: PlannedDeployment, advice: SpeculationAdvice) -> SpeculationAdvice:
        """The advice without options that the fleet could not serve as the file's own; as it is for many deployments."""
        if planned.spec not in self._replanning.candidates:
            return advice
        while (best := advice.best) is not None:
            found = self._replanning.with_speculation(planned.spec, best.speculation)
            if found is not None and found.of(planned.spec.name) is not None:
                break
            advice = advice.without(best)
        return advice

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
        used = acceptances_of(self.status).get(plan.name, ()) if self._is_by_traffic(ladder[rung]) else ()
        counted = tuple(one for one in used if one.model == ladder[rung].candidate.model)
        predictor = predictor_of(checkpoint, (), drafts, predicted_content(content), counted)
        return prediction_sums(predictor, self.fleet, plan.groups, rung)

    @staticmethod
    def _is_by_traffic(rung: Rung) -> bool:
        """True if a rung was predicted with acceptance that was counted here."""
        depths, accepted = rung.prediction.depths, rung.prediction.accepted
        return depths is not None and accepted is not None and accepted != depths.published

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
    if client is not None:
        async with client:
            specs = await client.sealed(specs)
            status = await client.fleet()
            key_names = await _key_names(client, specs)
    else:
        key_names = await _stored_key_names(session, specs) if assumed is None else None
    for line in missing_keys(specs, key_names) if key_names is not None else ():
        session.report(TroubleFound(line=line))
    drained = {one.node for one in status.drained} if status else set()
    fleet, around = await asyncio.gather(
        fleet_of(session, assumed, drained.union(without), status.endpoint_port if status else 0),
        _around(session, assumed),
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
    decision = with_expected_times(decision, times)
    return FleetPlan(tuple(specs), fleet, status, decision, client, checkpoints, stored, around)


async def _key_names(client: FleetClient, specs: Sequence[Deployment]) -> Collection[str] | None:
    """Names of the keys of a fleet; None if no deployment names any."""
    return [key.name for key in await client.keys()] if any(spec.keys for spec in specs) else None


async def _stored_key_names(session: Session, specs: Sequence[Deployment]) -> Collection[str] | None:
    """Names of the keys of a fleet that is down, with the one that its first start makes.

    None if no deployment names any, or the store cannot be read.
    """
    if not any(spec.keys for spec in specs):
        return None
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


async def _around(session: Session, assumed: str | None) -> dict[str, NodeSurroundings]:
    if assumed is not None:
        return {}
    return await surroundings_of(session.inventory, session.channels, SHOWING_S)


async def fleet_of(
    session: Session, assumed: str | None = None, without: Collection[str] = (), endpoint_port: int = 0
) -> Fleet:
    """The fleet with the facts that its nodes report, or with assumed ones, without drained nodes.

    `endpoint_port`: the endpoint's present port, see `Inventory.endpoint_ports`.
    """
    name, ports = session.inventory.fleet, session.inventory.endpoint_ports(endpoint_port)
    known = partial(Fleet, name=name, head=session.inventory.head, endpoint_ports=ports)
    if assumed is not None:
        facts = assume(assumed, session.inventory)
        nodes = tuple(node.name for node in facts)
        links = links_of(session.inventory)
        return known(nodes=facts, links=links, assumed=nodes)
    facts = await collect_facts(session.inventory, session.channels, without)
    found = measured_links(session.inventory, load_measurements(FleetPaths.default(name).links))
    links = tuple(link for link in found if not set(link.nodes) & set(without))
    closed = session.inventory.lan_rendezvous
    exposed = () if closed else tuple(node.name for node in facts if not node.fleet_firewall)
    drained = tuple(sorted(without))
    return known(nodes=facts, links=links, drained=drained, exposed=exposed)


async def checkpoints_for(
    session: Session, specs: Sequence[Deployment], fleet: Fleet
) -> dict[str, Checkpoint]:
    """Facts of the checkpoints from this machine, and from the nodes if it lacks the weights and they are not assumed.

    Names that may be misspelt are reported to the session.
    """
    if fleet.assumed:
        found = checkpoints_of(specs, fleet.nodes)
    else:
        found = await checkpoints_on(specs, fleet.nodes, session.inventory, session.channels)
    for line in filter(None, map(misspelt_line, found.values())):
        session.report(TroubleFound(line=line))
    return found
