"""Deployments as the controller reports them: what a new plan is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sparkfleet.group.group_name import short_name
from sparkfleet.planner.report.carry_over import CarriedOver, RunningGroup, carried_over
from sparkfleet.planner.report.diff import Handover
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment

if TYPE_CHECKING:  # slow imports, for a controller that answers
    from sparkfleet.controlplane.policy.state import FleetState
    from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus


def handover(
    spec: Deployment,
    plan: DeploymentPlan,
    running: Sequence[RunningGroup],
    status: FleetStatus | None,
    *,
    retry: bool = False,
) -> Handover | None:
    """Order in which groups end and start, by the controller's own rules and the memory that is free now.

    Args:
        spec: the deployment.
        plan: its new plan.
        running: its groups, at least one.
        status: the fleet's, with the free memory of its nodes.
        retry: every group starts again.

    Returns:
        None if a node does not report its memory.
    """
    # Slow imports, needed for changes of what runs only.
    from sparkfleet.controlplane.policy.memory_admission import granted
    from sparkfleet.controlplane.policy.rolling_update import rolling_updates
    from sparkfleet.controlplane.policy.state import Now

    state = _after_apply(spec, carried_over(plan, () if retry else running), running, status)
    grants = granted(state, Now.at(0.0))
    if all(grants.values()):
        return "beside"
    if False not in grants.values():
        return None
    ended = [action for roll in rolling_updates(state) for action in roll.ends(grants)]
    return "first" if len(ended) == len(state.older) else "in turn"


def _after_apply(
    spec: Deployment, found: CarriedOver, running: Sequence[RunningGroup], status: FleetStatus | None
) -> FleetState:
    """The state that the controller would see right after the apply."""
    from sparkfleet.controlplane.policy.state import FleetState
    from sparkfleet.controlplane.state.desired import Desired
    from sparkfleet.controlplane.state.status import App

    generation = 1 + max(one.member[0] for one in running)
    members = tuple(member or (generation, at) for at, member in enumerate(found.kept))
    after = Desired(spec=spec, plan=found.plan, generation=generation, who="", since=0.0, members=members)
    return FleetState(
        desired={spec.name: after},
        apps=tuple(
            App(deployment=spec.name, generation=one.member[0], replica=one.member[1], status="running")
            for one in running
        ),
        older={(spec.name, *one.member): one.candidate for one in found.ended(running)},
        available={
            node.name: node.memory_available
            for node in (status.nodes if status else ())
            if node.memory_available is not None
        },
    )


def running_plans(status: FleetStatus | None) -> dict[str, DeploymentPlan]:
    """Plans of the deployments that run, by their names."""
    return {one.name: one.plan for one in status.deployments if one.plan is not None} if status else {}


def plans_as_they_run(status: FleetStatus | None) -> dict[str, DeploymentPlan]:
    """The same, each group at the rung that it is at: one that has lost a node holds memory on others than its first."""
    plans = running_plans(status)
    return {
        one.name: _as_it_runs(plans[one.name], one.passed)
        for one in (status.deployments if status else ())
        if one.name in plans
    }


def _as_it_runs(plan: DeploymentPlan, passed: Sequence[Sequence[str]]) -> DeploymentPlan:
    """A plan without the rungs that its groups have left; `passed`: as a status has them."""
    left = [len(passed[at]) if at < len(passed) else 0 for at in range(len(plan.groups))]
    groups = (
        group.model_copy(update={"ladder": group.ladder[group.rung_index(at) :]})
        for group, at in zip(plan.groups, left, strict=True)
    )
    return plan.model_copy(update={"groups": tuple(groups)})


def yielding(status: FleetStatus | None) -> frozenset[str]:
    """Deployments on demand that are loaded: their memory is for whatever starts."""
    found = status.deployments if status else ()
    return frozenset(one.name for one in found if one.on_demand and one.state != "unloaded")


def unloaded(status: FleetStatus | None) -> frozenset[str]:
    """Deployments on demand that are not loaded: they hold no memory."""
    return (
        frozenset(one.name for one in status.deployments if one.state == "unloaded")
        if status
        else frozenset()
    )


def lowest_rung(name: str, status: FleetStatus | None) -> int:
    """The lowest rung, from 0, of a deployment's groups."""
    found = reported(name, status)
    return max(map(len, found.passed), default=0) if found else 0


def running_groups(name: str, status: FleetStatus | None) -> tuple[RunningGroup, ...] | None:
    """Groups of a deployment that run or start; None if the controller does not report them.

    Those of its present generation precede older ones that serve until then: of two that match a plan the first is kept. One
    that is given up is not among them: an apply starts it again.
    """
    found = reported(name, status)
    if found is None or found.running is None:
        return found.running if found else ()
    return tuple(sorted(found.running, key=partial(_is_replaced, found)))


def replaced_groups(name: str, status: FleetStatus | None) -> tuple[str, ...]:
    """Names of the groups of a deployment that serve until those of its present generation do."""
    found = reported(name, status)
    if found is None:
        return ()
    return tuple(one.name for one in found.running or () if _is_replaced(found, one))


def silent_groups(name: str, status: FleetStatus | None) -> frozenset[str]:
    """Names of the groups of a deployment that do not report, or of which a node does not answer."""
    found = reported(name, status)
    if found is None or status is None:
        return frozenset()
    away = {node.name for node in status.nodes if not node.joined or node.silent_s is not None}
    return frozenset(
        short_name(one.group)
        for one in found.groups
        if one.silent_s or not away.isdisjoint((one.node, *(rank.node for rank in one.ranks)))
    )


def _is_replaced(deployment: DeploymentStatus, group: RunningGroup) -> bool:
    return deployment.index_of((deployment.name, *group.member)) is None


def desired_before(name: str, status: FleetStatus | None) -> tuple[Deployment, DeploymentPlan] | None:
    """Desired generation; None if there is none of that name."""
    found = reported(name, status)
    if found is None or found.plan is None or (found.running is None and found.state == "failed"):
        return None
    return Deployment.model_validate_json(found.spec), found.plan


def reported(name: str, status: FleetStatus | None) -> DeploymentStatus | None:
    """Status of a deployment; None if there is none of that name."""
    return status.named(name) if status else None
