"""Drains a node (plans what runs on it for the other nodes, moves it, waits until it is empty), or one group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
from sparkfleet.errors import ControlError, Infeasible, SpecError
from sparkfleet.fleet.deployments.apply import AppliedDeployments, PreparedApply, carry_out
from sparkfleet.fleet.deployments.watch import WAIT_S, not_ended
from sparkfleet.fleet.events import FactFound, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.node_programs import who
from sparkfleet.fleet.nodes.node_set import require_known_nodes
from sparkfleet.fleet.planning.plan import plan_deployments
from sparkfleet.fleet.session import Session
from sparkfleet.group.group_name import required_group
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import quote

IDLE_S = 5.0
"""Seconds for which a group reports no request before it counts as idle: it reads its engine's counters every two."""


class PreparedGroupDrain(NamedTuple):
    """Effect of draining a group, ready to be confirmed."""

    group: str
    running: int
    """Requests that run on it, and that wait in its engine."""
    others: int
    """Groups of its deployment that go on taking requests."""
    drained: bool
    """True if it is drained already."""


class PreparedDrain(NamedTuple):
    """Plan of a drain, ready to be confirmed."""

    node: str
    apply: PreparedApply | None
    """Moves the deployments of the node; None if there are none."""
    drained: bool
    """True if the node is drained already, and nothing is on it."""
    stays: tuple[str, ...] = ()
    """Deployments on demand that are not loaded, and that no other node can serve: they start after `undrain`."""
    loaded: tuple[str, ...] = ()
    """Deployments on demand that are loaded there."""

    def require_movable(self) -> None:
        """Raise Infeasible if the other nodes cannot serve one of its deployments: then the node is not drained."""
        refused = self.apply.planned.decision.plan.refused if self.apply is not None else ()
        if refused:
            names = [one.name for one in refused]
            deletes = ", ".join(
                f"`sparkfleet {'unload' if name in self.loaded else 'delete'} {name}`" for name in names
            )
            raise Infeasible(
                f"{self.node} was not drained: the other nodes cannot serve {', '.join(names)}.",
                do=f"{deletes}, then `sparkfleet drain {self.node}` again.",
            )


def deployments_on(status: FleetStatus, node: str) -> tuple[DeploymentStatus, ...]:
    """Deployments of which a group is planned, runs or ends on a node. Pure."""
    return tuple(one for one in status.deployments if node in _nodes(one))


def _nodes(deployment: DeploymentStatus) -> set[str]:
    """Nodes of its groups, each at its rung, and of the ranks that they report."""
    planned = deployment.plan.groups if deployment.plan is not None else ()
    exact = {one.member: one.candidate for one in deployment.running or ()}
    members = deployment.members or tuple((deployment.generation, at) for at in range(len(planned)))
    # A group that is given up, and each one of a controller of an earlier release, is on the rung that it reported last.
    reported = {group.group[1:]: group.rung for group in deployment.groups}
    at_last = {
        member: rung.candidate
        for member, group in zip(members, planned, strict=False)
        for rung in group.ladder[reported.get(member, 0) :][:1]
    }
    ranks = {rank.node for group in deployment.groups for rank in group.ranks}
    return {node for one in {**at_last, **exact}.values() for node in one.shape.nodes} | ranks


async def prepare_drain(session: Session, node: str) -> PreparedDrain:
    """Plans what runs on a node for the others. Changes nothing.

    Raises:
        SpecError: the inventory has no such node.
        ControlError: the fleet is down, or was started without a node of the plan.
        NodeError: another node cannot be reached.
    """
    if node not in session.inventory.nodes:
        raise SpecError(
            f"There is no node {quote(node)}.",
            do=f"Nodes: {', '.join(session.inventory.nodes)}."
            " A group is drained by its name, such as `sparkfleet drain tiny/g1/0`: `sparkfleet status` lists them.",
        )
    async with await session.controller() as client:
        status = await client.fleet()
    found = deployments_on(status, node)
    drained = not any(one.is_loaded for one in found) and node in status.drained_nodes
    wanted = [one for one in found if one.plan is not None]
    unloaded = {one.name for one in wanted if not one.is_loaded}
    if not _others(session, status, node):
        _require_nothing_runs(wanted)
        return PreparedDrain(node, None, drained, tuple(sorted(unloaded)))
    if not wanted:
        return PreparedDrain(node, None, drained)
    specs = [Deployment.model_validate_json(one.spec) for one in wanted]
    planned = await plan_deployments(session, specs, without=(node,))
    stays = tuple(one.name for one in planned.decision.plan.refused if one.name in unloaded)
    if stays:
        specs = [one for one in specs if one.name not in stays]
        if not specs:
            return PreparedDrain(node, None, drained, stays)
        planned = await plan_deployments(session, specs, without=(node,))
    if planned.client is None:
        raise ControlError("The fleet went down meanwhile.", do="`sparkfleet status` shows its state.")
    planned.client.require_same_api()
    require_known_nodes(session.inventory, planned.status, [one.plan for one in planned.decision.pending])
    loaded = tuple(one.name for one in wanted if one.on_demand and one.name not in unloaded)
    return PreparedDrain(node, PreparedApply(planned, renew=False, retry=False), drained, stays, loaded)


def _others(session: Session, status: FleetStatus, node: str) -> set[str]:
    return set(session.inventory.nodes) - status.drained_nodes - {node}


def _require_nothing_runs(found: Sequence[DeploymentStatus]) -> None:
    if running := [one for one in found if one.is_loaded]:
        unload = ""
        if demanded := [one.name for one in running if one.on_demand]:
            unload = f"`sparkfleet unload {demanded[0]}` ends what is on demand; "
        raise Infeasible(
            f"No other node is left for {', '.join(one.name for one in running)}.",
            do=f"{unload}`sparkfleet delete NAME` ends a deployment; `sparkfleet down` stops the fleet and keeps all of"
            " them.",
        )


async def carry_out_drain(
    session: Session, prepared: PreparedDrain, on_event: OnEvent
) -> AppliedDeployments | None:
    """Drains the node and moves its deployments; their old groups serve until the new ones are ready, if memory holds both.

    If an earlier drain has moved them already, it waits until that one has ended.

    Returns the outcome of the moved deployments; None if there were none. The node stays drained in any case.

    Raises:
        Infeasible: the other nodes cannot serve one of them; nothing was changed.
        ControlError: the controller refused, or an earlier drain has not moved one of them.
    """
    prepared.require_movable()
    client = await session.controller()
    async with client:
        await client.drain(prepared.node, who())
    if prepared.apply is None or prepared.apply.changes_nothing:
        await until_empty(client.again(), prepared.node, on_event)
        return None
    applied = await carry_out(session, prepared.apply, on_event)
    if not applied.failed:
        await until_empty(applied.client.again(), prepared.node, on_event)
    return applied


async def until_empty(client: FleetClient, node: str, on_event: OnEvent) -> None:
    """Waits until no group runs or is planned on a node. Raises ControlError if one does not start elsewhere."""
    is_named = False
    async with client:
        while True:
            status = await client.fleet()
            left = [one for one in deployments_on(status, node) if one.is_loaded]
            if not left:
                return
            if failed := [one.name for one in left if one.state == "failed"]:
                raise ControlError(
                    f"{', '.join(failed)} did not start on another node.",
                    means=f"{node} is drained, and what serves there goes on.",
                    do=f"`sparkfleet describe {failed[0]}` shows the reason; `sparkfleet apply FILE --retry` tries again.",
                )
            if not is_named and any(one.name == node and one.silent_s is not None for one in status.nodes):
                is_named = True
                on_event(FactFound(line=not_ended((node,), [one.name for one in left])))
            on_event(StepRunning(step=FleetStep.STOPPING, subjects=tuple(one.name for one in left)))
            await client.events(status.last_event, wait_s=WAIT_S)


async def undrain_node(session: Session, node: str) -> None:
    """Lets a drained node be used again. Starts only what waits for it. Raises ControlError if it is not drained."""
    async with await session.controller() as client:
        await client.undrain(node, who())


# --- groups


def is_group(name: str) -> bool:
    """True for the name of a group; a node's has no slash."""
    return "/" in name


async def prepare_group_drain(session: Session, name: str) -> PreparedGroupDrain:
    """Reads the effect that a drain of this group has now. Changes nothing.

    Raises:
        ControlError: the fleet is down, or has no such group.
    """
    required_group(name)
    async with await session.controller() as client:
        return group_drain(await client.fleet(), name)


def group_drain(status: FleetStatus, name: str) -> PreparedGroupDrain:
    """Effect of a drain of this group by a status. Pure. Raises ControlError if there is no such group."""
    found = group_report(status, name)
    if found is None:
        names = ", ".join(group.name for group in status.groups) or "none"
        raise ControlError(f"There is no group {name}.", do=f"Groups: {names}.")
    drained = {one.name for one in status.drained_groups}
    others = [
        group.name
        for group in status.groups
        if group.deployment == found.deployment and group.phase is GroupPhase.READY
    ]
    return PreparedGroupDrain(
        group=name,
        running=found.running + found.waiting,
        others=len(set(others) - drained - {name}),
        drained=name in drained,
    )


def group_report(status: FleetStatus, name: str) -> GroupReport | None:
    """The report of a group; None if there is none of that name. Pure."""
    return next((group for group in status.groups if group.name == name), None)


async def drain_group(session: Session, name: str, on_event: OnEvent = ignored) -> tuple[str, ...]:
    """Lets no new request go to a group, and waits until those on it have ended. Cancelling this leaves it drained.

    Returns gateways that did not confirm the change: they may send it requests until they do.

    Raises:
        ControlError: the controller refused.
    """
    async with await session.controller() as client:
        late = await client.drain_group(name, who())
        await until_idle(client, name, on_event)
    return late


async def until_idle(client: FleetClient, name: str, on_event: OnEvent = ignored) -> None:
    """Waits until a group has reported no request for `IDLE_S`, or does not serve."""
    loop = asyncio.get_running_loop()
    idle_since: float | None = None
    while True:
        found = group_report(await client.fleet(), name)
        if found is None or found.phase is not GroupPhase.READY:
            return
        left = found.running + found.waiting
        if left or found.silent_s:
            idle_since = None
            on_event(StepRunning(step=FleetStep.FINISHING, subjects=(name,), detail=f"{left} left"))
        elif idle_since is None:
            idle_since = loop.time()
        elif loop.time() - idle_since >= IDLE_S:
            return
        await asyncio.sleep(WAIT_S)


async def undrain_group(session: Session, name: str) -> tuple[str, ...]:
    """Lets requests go to a drained group again. Returns gateways that did not confirm. Raises ControlError as above."""
    required_group(name)
    async with await session.controller() as client:
        return await client.undrain_group(name, who())
