"""Deployments as the controller reports them: what a new plan is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sparkfleet.planner.report.carry_over import RunningGroup, carried_over
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment

if TYPE_CHECKING:  # slow imports, for a controller that answers
    from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus


def memory_holds_both(
    spec: Deployment, plan: DeploymentPlan, running: Sequence[RunningGroup], status: FleetStatus | None
) -> bool | None:
    """True if the engines that start fit into the memory that is free now, as the controller decides it later."""
    # Slow imports, needed for changes of what runs only.
    from sparkfleet.controlplane.policy.memory_admission import fitting
    from sparkfleet.controlplane.state.desired import Desired

    found = carried_over(plan, running)
    members = tuple(member or (0, at) for at, member in enumerate(found.kept))
    new = Desired(spec=spec, plan=found.plan, generation=0, who="", since=0.0, members=members)
    free = {
        node.name: node.memory_available
        for node in (status.nodes if status else ())
        if node.memory_available is not None
    }
    return fitting([new], [], free)[spec.name]


def running_plans(status: FleetStatus | None) -> dict[str, DeploymentPlan]:
    """Plans of the deployments that run, by their names."""
    return {one.name: one.plan for one in status.deployments if one.plan is not None} if status else {}


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
        f"g{one.generation}/{one.replica}"
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
