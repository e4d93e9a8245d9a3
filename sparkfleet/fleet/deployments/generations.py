"""Goes back to a generation of a deployment, starts its engines again, changes its number of replicas."""

from __future__ import annotations

from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.controlplane.state.taken_ports import refuse_taken_ports
from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.deployments.apply import PreparedApply, prepare_apply
from sparkfleet.fleet.deployments.history import history_of
from sparkfleet.fleet.deployments.status import find_now
from sparkfleet.fleet.nodes.node_set import require_known_nodes
from sparkfleet.fleet.planning.fleet_decision import FleetDecision, PlannedDeployment
from sparkfleet.fleet.planning.plan import FleetPlan
from sparkfleet.fleet.planning.running import handover, replaced_groups, running_groups, unloaded
from sparkfleet.fleet.session import Session
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.diff import Change, compare
from sparkfleet.planner.types.plan import DeploymentPlan, Plan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.remote_code import code_problems


async def prepare_rollback(session: Session, name: str, generation: int | None) -> PreparedApply:
    """Prepares to apply an earlier generation with the plan that it had. Changes nothing.

    Args:
        name: of the deployment; one that was deleted comes back.
        generation: left out: the newest one before the current one.

    Raises:
        ControlError: the fleet is down, has no such generation, does not have a node of its plan, or has given its declared
            port to the gateway or another deployment.
    """
    history = await history_of(session, name)
    now = history.status.generation if history.status else None
    able = [one for one in history.generations if one.generation != now]
    wanted = [one for one in able if generation is None or one.generation == generation]
    if not wanted:
        kept = ", ".join(str(one.generation) for one in able) or "none"
        beside = "" if now is None else f" beside the current one ({now})"
        raise ControlError(
            f"{name} has no {'earlier generation' if generation is None else f'generation {generation} to go back to'}.",
            do=f"Generations that are kept{beside}: {kept}. `sparkfleet history {name}` shows them.",
        )
    return await _prepare(session, wanted[-1].spec, wanted[-1].plan)


async def prepare_restart(session: Session, name: str) -> PreparedApply:
    """Prepares to start every engine of a deployment again, at the first rung. Changes nothing.

    Raises:
        ControlError: the fleet is down, or has none of that name.
    """
    async with await session.controller() as client:
        found = await find_now(client, name)
    if found.plan is None:
        raise ControlError(f"{name} is being stopped, so there is nothing to restart.")
    return await _prepare(session, Deployment.model_validate_json(found.spec), found.plan, retry=True)


async def prepare_scale(session: Session, name: str, replicas: int) -> PreparedApply:
    """Prepares to run another number of replicas. Changes nothing.

    Raises:
        ControlError: the fleet is down, or has none of that name.
        SpecError: not a number of replicas.
    """
    async with await session.controller() as client:
        found = await find_now(client, name)
    spec = Deployment.model_validate_json(found.spec)
    wanted = Deployment.model_validate({**spec.model_dump(exclude_unset=True), "replicas": replicas})
    return await prepare_apply(session, [wanted])


async def _prepare(
    session: Session, spec: Deployment, plan: DeploymentPlan, *, retry: bool = False
) -> PreparedApply:
    """An apply of a plan that exists already. Raises SpecError if it would run code of a checkpoint that is not pinned.

    Raises ControlError unless `retry` if it would listen on a port of the gateway or another deployment.
    """
    _refuse_unpinned_code(spec)
    client = await session.controller()
    async with client:
        status = await client.fleet()
    require_known_nodes(session.inventory, status, [plan])
    if not retry:
        refuse_taken_ports(plan, status, session.inventory.endpoint_ports(status.endpoint_port))
    change = _change(spec, plan, status, retry=retry)
    planned = PlannedDeployment(spec=spec, plan=plan, change=change)
    decision = FleetDecision(Plan(deployments=(plan,)), [planned])
    fleet = Fleet(name=session.inventory.fleet, nodes=())
    return PreparedApply(FleetPlan((spec,), fleet, status, decision, client.again(), {}), False, retry)


def _refuse_unpinned_code(spec: Deployment) -> None:
    """An older release accepted `--trust-remote-code` among the arguments, and its plans are still stored."""
    for problem in code_problems(spec):
        raise SpecError(
            f"{spec.name}: {problem.text}",
            means="The stored plan was made by a release that did not check this. What runs now was not changed.",
            do=f"Change the file of {spec.name}, and `sparkfleet apply` it.",
        )


def _change(spec: Deployment, plan: DeploymentPlan, status: FleetStatus, *, retry: bool) -> Change:
    now = status.named(spec.name)
    if now is None or now.plan is None:
        return compare(spec, plan, None)
    running = running_groups(spec.name, status) or ()
    if retry:
        ends = tuple(one.name for one in running)
        change = Change(verb="change", name=spec.name, starts=len(plan.groups), ends=ends)
    else:
        before = (Deployment.model_validate_json(now.spec), now.plan)
        change = compare(spec, plan, before, running, replaced_groups(spec.name, status))
    if spec.name in unloaded(status):
        return change.model_copy(update={"unloaded": True})
    if not (change.starts and change.ends):
        return change
    order = handover(spec, plan, running, status, retry=retry)
    return change.model_copy(update={"handover": order})
