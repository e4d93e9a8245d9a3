"""Plans deployments together, with the fleet's own measurements, and compares them with what is applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.controlplane.views.speculation_advice import acceptances_of
from sparkfleet.fleet.planning.checkpoints import builtin_models_of
from sparkfleet.fleet.planning.group_measurements import measured_lines, measurements_of
from sparkfleet.fleet.planning.running import (
    desired_before,
    handover,
    lowest_rung,
    plans_as_they_run,
    replaced_groups,
    reported,
    running_groups,
    running_plans,
    silent_groups,
    unloaded,
    yielding,
)
from sparkfleet.fleet.planning.step_times import StepTimes, last_start_s
from sparkfleet.perf.latency.local_acceptance import LocalAcceptance
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.diff import Change, DiffVerb, compare, planned_groups
from sparkfleet.planner.rules.failure_memory import without_failed
from sparkfleet.planner.types.image_refs import digests_of, with_digests
from sparkfleet.planner.types.plan import DeploymentPlan, Plan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value

if TYPE_CHECKING:
    from sparkfleet.controlplane.state.status import FleetStatus  # a slow import


class PlannedDeployment(Value):
    """One deployment with its plan, and the change against the applied generation."""

    spec: Deployment
    plan: DeploymentPlan
    change: Change
    measured: tuple[str, ...] = ()
    """Measurements of its groups, each with the prediction of their plan."""


class FleetDecision(NamedTuple):
    """Plans for all deployments of a command line, and the change that each makes."""

    plan: Plan
    planned: list[PlannedDeployment]
    """Deployments that fit, in the order of the command line."""

    @property
    def pending(self) -> list[PlannedDeployment]:
        """Deployments that would change."""
        return [one for one in self.planned if one.change.verb != "keep"]


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
    return FleetDecision(found, [_with_others(one, specs, status) for one in planned])


def _with_others(
    one: PlannedDeployment, specs: Sequence[Deployment], status: FleetStatus | None
) -> PlannedDeployment:
    """The same with the running deployments of its model that these specs do not name, if it is a new one."""
    if status is None or desired_before(one.spec.name, status) is not None:
        return one
    named = {spec.name for spec in specs}
    others = tuple(
        name
        for name, plan in running_plans(status).items()
        if name not in named and _models_of(plan) & _models_of(one.plan)
    )
    return one.model_copy(update={"change": one.change.model_copy(update={"same_model": others})})


def _models_of(plan: DeploymentPlan) -> set[str]:
    return {group.choice.candidate.model for group in plan.groups}


def planned_with(
    specs: Sequence[Deployment],
    fleet: Fleet,
    status: FleetStatus | None,
    checkpoints: Mapping[str, Checkpoint],
    *,
    resized: bool = False,
) -> Plan:
    """The plan with the fleet's own measurements; `resized`: what runs does not keep its share of `concurrency`.

    A running deployment is not replaced because of a measurement: applying twice changes nothing. If acceptance that was
    counted on the requests of those that go on would replace one, the plan is made without it, and then without any
    measurement.
    """
    own, counted, builtin = measurements_of(status), acceptances_of(status), builtin_models_of(specs)
    plan = partial(
        plan_fleet,
        specs,
        fleet,
        checkpoints,
        plans_as_they_run(status),
        builtin_models=builtin,
        resized=resized,
        yielding=yielding(status),
        unloaded=unloaded(status),
    )
    plain = plan()
    kept = [spec for spec in specs if (own or counted) and _change(spec, plain, status) == "keep"]
    going_on = {spec.name for spec in kept}
    changing = {name: each for name, each in counted.items() if name not in going_on}
    tried: list[dict[str, tuple[LocalAcceptance, ...]]] = []
    for acceptances in (counted, changing, {}):
        if acceptances in tried or not (own or acceptances):
            continue
        tried.append(acceptances)
        informed = plan(own, acceptances=acceptances)
        if all(_change(spec, informed, status) == "keep" for spec in kept):
            return informed
    return plain


def with_expected_times(decision: FleetDecision, times: StepTimes) -> FleetDecision:
    """The same with the time that the last start of the same took on this fleet."""
    return decision._replace(planned=[_expecting(one, times) for one in decision.planned])


def _expecting(one: PlannedDeployment, times: StepTimes) -> PlannedDeployment:
    took = last_start_s(times, one.plan) if one.change.starts else None
    return one.model_copy(update={"change": one.change.model_copy(update={"expected_s": took})})


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
) -> PlannedDeployment:
    before, running = desired_before(spec.name, status), running_groups(spec.name, status)
    replaced = replaced_groups(spec.name, status)
    plan = plan if renew else _as_deployed(plan, status)
    change = compare(spec, plan, before, running, replaced)
    if change.verb != "keep" and not retry:  # a running group keeps its rung
        plan = without_failed(plan, status.failures if status else ())
        change = compare(spec, plan, before, running, replaced)
    lowest = lowest_rung(spec.name, status)
    again = change.verb == "keep" and retry and lowest > 0
    if again:
        change = Change(
            verb="change",
            name=spec.name,
            fields=(f"rung: {lowest + 1} → 1",),
            starts=len(plan.groups),
            ends=tuple(one.name for one in running or ()),
        )
    if change.starts and change.ends and spec.name not in unloaded(status):
        there = running or (planned_groups(before[1]) if before else ())
        order = handover(spec, plan, there, status, retry=again)
        silent = silent_groups(spec.name, status).intersection(change.ends)
        change = change.model_copy(update={"handover": order, "silent": tuple(sorted(silent))})
    if spec.name in unloaded(status):
        change = change.model_copy(update={"unloaded": True})
    runs = reported(spec.name, status)
    measured = tuple(measured_lines(runs)) if runs else ()
    return PlannedDeployment(spec=spec, plan=plan, change=change, measured=measured)
