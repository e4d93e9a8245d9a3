"""Applies deployments in two steps: `prepare_apply` decides and changes nothing, `carry_out` does it.

Between the two, the caller shows the plan and asks for agreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.fleet.events import FleetEvent, FleetStep, KeyCreated, OnEvent, UseCaseEvent, ignored
from sparkfleet.fleet.gateway import change_gateway, gateway_change
from sparkfleet.fleet.known_names import remember_names
from sparkfleet.fleet.nodes.node_set import require_known_nodes
from sparkfleet.fleet.nodes.surroundings import require_free
from sparkfleet.fleet.planning.plan import FIRST_KEY, FleetPlan, plan_deployments
from sparkfleet.fleet.planning.step_times import (
    StepTimer,
    all_ready,
    expected_times,
    load_step_times,
    save_step_times,
    started_by,
)
from sparkfleet.fleet.session import Session
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.deployment import Deployment

if TYPE_CHECKING:  # slow imports, needed after the plan is shown
    from sparkfleet.controlplane.api.api_models import ApplyRequest
    from sparkfleet.controlplane.api.client import FleetClient
    from sparkfleet.controlplane.state.status import DeploymentStatus


class PreparedApply(NamedTuple):
    """Plan of an apply, ready to be confirmed."""

    planned: FleetPlan
    renew: bool
    retry: bool
    gateway: str = ""
    """Change of the gateway's address or limit, in words; "" for none."""

    @property
    def changes_nothing(self) -> bool:
        """True if the fleet is up and runs all of it already."""
        return self.planned.client is not None and not self.planned.decision.pending and not self.gateway


class AppliedDeployments(NamedTuple):
    """Outcome of an apply."""

    client: FleetClient
    """Of the controller, not entered."""
    settled: Mapping[str, DeploymentStatus]
    """By name, ready, unloaded (on demand) or failed; empty without `wait`."""
    times: Mapping[FleetStep, float]
    """Seconds by step, in the order in which they began."""

    @property
    def failed(self) -> bool:
        """True if any deployment has failed."""
        return any(one.state == "failed" or one.instead is not None for one in self.settled.values())


async def prepare_apply(
    session: Session, specs: Sequence[Deployment], *, renew: bool = False, retry: bool = False
) -> PreparedApply:
    """Plan deployments on the fleet as it is. Changes nothing.

    Args:
        renew: resolve image tags at their registries again; otherwise a deployment keeps its image.
        retry: begin at rung 1 of the ladder, including rungs that are remembered as failed.

    Raises:
        NodeError: a node cannot be reached, or a command on it failed.
        FactError: a checkpoint cannot be found, or is of an unknown kind.
        ControlError: the controller has another version of the API, a node has another head, or the fleet that runs was
            started without a node of the plan.
    """
    planned = await plan_deployments(session, specs, renew=renew, retry=retry)
    if planned.client is not None:
        planned.client.require_same_api()
        if planned.status is not None:
            # A slow import, as is all of a fleet that is up.
            from sparkfleet.fleet.deployments.status import require_not_paused

            require_not_paused(planned.status)
        plans = [one.plan for one in planned.decision.pending]
        require_known_nodes(session.inventory, planned.status, plans)
    else:
        require_free(session.inventory, planned.around)
    return PreparedApply(planned, renew, retry, gateway_change(session.inventory, planned.status))


async def carry_out(
    session: Session, prepared: PreparedApply, on_event: OnEvent = ignored, *, wait: bool = True
) -> AppliedDeployments:
    """Stage weights and images, bring the fleet up if it is down, apply at its controller, and wait until all serve.

    Args:
        wait: return only when every deployment is ready or has failed. Cancelling the wait stops no deployment.

    Raises:
        Infeasible: nothing in the fleet can serve one of the deployments; nothing was applied.
        StagingError: weights or an image cannot be obtained.
        NodeError: a node cannot be reached.
        ControlError: the fleet did not come up, or the controller refused.
    """
    prepared.planned.require_feasible()
    client = prepared.planned.client
    if prepared.gateway:
        await change_gateway(session)
        client = await session.controller()  # with the new address
    pending = prepared.planned.decision.pending
    file = FleetPaths.default(session.inventory.fleet).step_times
    subject = started_by(tuple(one.plan for one in pending))
    with StepTimer(on_event, expected_times(load_step_times(file), subject)) as timer:
        plans = await _stage(session, prepared, timer)
        requests = _requests(prepared, plans)
        client, settled = await _apply(session, client, requests, timer, wait=wait)
    if all_ready(settled):
        save_step_times(file, subject, timer.times)
    return AppliedDeployments(client, settled, timer.times)


def not_ready(prepared: PreparedApply) -> dict[str, int]:
    """Generations of the deployments, by name, that stay as they are and do not serve whole yet."""
    status = prepared.planned.status
    names = {one.spec.name for one in prepared.planned.decision.planned}
    found = status.deployments if status is not None else ()
    return {
        one.name: one.generation
        for one in found
        if one.name in names and one.state not in ("ready", "unloaded")
    }


async def until_kept_serve(
    client: FleetClient, prepared: PreparedApply, on_event: OnEvent
) -> dict[str, DeploymentStatus]:
    """Wait until the deployments of `not_ready` serve or have failed. Returns their last status."""
    from sparkfleet.fleet.deployments.watch import until_settled

    status = prepared.planned.status
    after = status.last_event if status is not None else 0
    return await until_settled(client, not_ready(prepared), after, on_event)


async def _stage(session: Session, prepared: PreparedApply, on_event: OnEvent) -> tuple[DeploymentPlan, ...]:
    """Stage what the plans need on their nodes. Returns the plans with digests for tags."""
    from sparkfleet.fleet.storage.stage import (  # a slow import, needed after the plan is shown
        pin_images,
        stage_plans,
    )

    status = prepared.planned.status
    failed = status.failures if status and not prepared.retry else ()
    before = [one.plan for one in prepared.planned.decision.pending]
    plans = await pin_images(session, before, failed, on_event, renew=prepared.renew)
    await stage_plans(session, plans, on_event)
    return plans


async def _apply(
    session: Session,
    client: FleetClient | None,
    requests: Sequence[ApplyRequest],
    on_event: OnEvent,
    *,
    wait: bool,
) -> tuple[FleetClient, dict[str, DeploymentStatus]]:
    from sparkfleet.fleet.deployments.watch import until_settled

    cold = client is None
    if client is None:
        client = await session.lifecycle.bring_up(requests, on_event)
        # `bring_up` has applied them already: a second retry would restart them.
        requests = [request.model_copy(update={"retry": False}) for request in requests]
    async with client:
        after = 0 if cold else (await client.fleet()).last_event
        wanted = {request.spec.name: (await client.apply(request))[0] for request in requests}
        keys = await create_first_key(client, on_event)
        names = [one.name for one in (await client.fleet()).deployments]
        remember_names(session.inventory.fleet, deployments=names, keys=keys)
        own = {request.spec.name: request.spec for request in requests}
        narrowed = _of_generations(wanted, on_event) if cold else on_event
        settled = await until_settled(client, wanted, after, narrowed, own) if wait else {}
    return client, settled


def _of_generations(wanted: Mapping[str, int], on_event: OnEvent) -> OnEvent:
    """Receiver without the events of earlier generations: the log of a fleet that was down has those of its past."""

    def receive(event: UseCaseEvent) -> None:
        if isinstance(event, FleetEvent) and event.event.generation < wanted[event.event.deployment]:
            return
        on_event(event)

    return receive


def _requests(prepared: PreparedApply, plans: Sequence[DeploymentPlan]) -> list[ApplyRequest]:
    from sparkfleet.controlplane.api.api_models import ApplyRequest
    from sparkfleet.fleet.node_programs import who

    planned = prepared.planned
    return [
        ApplyRequest(
            spec=p.spec, plan=plan, who=who(), retry=prepared.retry, base=planned.base_of(p.spec.name)
        )
        for p, plan in zip(planned.decision.pending, plans, strict=True)
    ]


async def create_first_key(client: FleetClient, on_event: OnEvent) -> list[str]:
    """Create the first key, which the gateway requires from its first start on. Returns the names of all keys.

    It is sent before the wait, so that it is shown even if the user interrupts the wait. An apply that was interrupted while
    the fleet came up has stored the deployments and no key: the next one changes nothing and creates it.

    Args:
        client: of the controller, entered.
    """
    if known := [key.name for key in await client.keys()]:
        return known
    key = (await client.create_key(FIRST_KEY))["key"]
    on_event(KeyCreated(name=FIRST_KEY, key=key))
    return [FIRST_KEY]
