"""Follows deployments until they serve, fail, or are gone. Whoever stops following stops nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
from sparkfleet.engines.startup_phases import Phase
from sparkfleet.errors import ControlError
from sparkfleet.fleet.events import FleetEvent, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

WAIT_S = 1.0
"""A call for events waits so long for one; the step is looked at anew after it."""

PASSING = frozenset({"progress"})
"""Kinds of events that are no history: they only say how far a start was."""
STEPS = PASSING | {"wanted", "starting", "preparing", "probing"}
"""Kinds of events that are seen as steps by those who follow a start."""


async def until_settled(
    client: FleetClient, wanted: Mapping[str, int], after: int, on_event: OnEvent = ignored
) -> dict[str, DeploymentStatus]:
    """Send events until every wanted deployment is ready or has failed; their last status.

    Args:
        client: of the controller, entered.
        wanted: generations by the deployments' names.
        after: the last event that is known already.
        on_event: takes events of these deployments, and the step that the start is at.

    Raises:
        ControlError: one of them was deleted meanwhile.
    """
    while True:
        for event in await client.events(after, wait_s=WAIT_S):
            after = event.id
            if event.deployment in wanted and event.kind not in STEPS:
                on_event(FleetEvent(event=event))
        fleet = await client.fleet()
        if lost := wanted.keys() - {one.name for one in fleet.deployments if one.state != "stopping"}:
            raise ControlError(
                f"{', '.join(sorted(lost))}: somebody deleted it, or took the fleet down, meanwhile."
            )
        settled = _settled(fleet, wanted)
        if len(settled) == len(wanted):
            return settled
        names = wanted.keys() - settled.keys()
        on_event(starting_step([one for one in fleet.deployments if one.name in names]))


async def until_gone(client: FleetClient, name: str, after: int, on_event: OnEvent = ignored) -> None:
    """Send events until nothing of a deployment is left."""
    while any(deployment.name == name for deployment in (await client.fleet()).deployments):
        on_event(StepRunning(step=FleetStep.STOPPING, subjects=(name,)))
        for event in await client.events(after, name, wait_s=WAIT_S):
            after = event.id
            if event.kind not in PASSING:
                on_event(FleetEvent(event=event))


def _settled(status: FleetStatus, wanted: Mapping[str, int]) -> dict[str, DeploymentStatus]:
    return {
        d.name: d
        for d in status.deployments
        if d.name in wanted and d.generation >= wanted[d.name] and d.state in ("ready", "failed")
    }


# --- the step of a start ----------------------------------------------------------------------------------------------

ORDER = tuple(FleetStep)
_OF_ENGINE: Mapping[Phase, FleetStep] = {
    "loading": FleetStep.LOADING,
    "compiling": FleetStep.COMPILING,
    "warming": FleetStep.WARMING_UP,
    "up": FleetStep.FIRST_TOKEN,
}


def starting_step(deployments: Sequence[DeploymentStatus]) -> StepRunning:
    """The step of deployments that start: of all their groups the earliest. Pure."""
    names = tuple(sorted(one.name for one in deployments))
    groups = [
        group
        for one in deployments
        for group in one.groups
        if group.generation == one.generation and group.phase in (*BEGINNING, GroupPhase.PROBING)
    ]
    if not groups:
        detail = next((one.detail for one in deployments if one.detail), "")
        return StepRunning(step=FleetStep.WAITING, detail=detail, subjects=names)
    first = min(groups, key=lambda group: ORDER.index(_step_of(group)))
    return StepRunning(step=_step_of(first), detail=_detail_of(first), subjects=names)


def _step_of(group: GroupReport) -> FleetStep:
    if not group.ranks:
        return FleetStep.WAITING
    if group.phase is GroupPhase.PREPARING and group.detail:  # a model that is there already says nothing
        return FleetStep.TRAINING
    if group.phase is GroupPhase.PROBING:
        return FleetStep.FIRST_TOKEN
    return FleetStep.STARTING_ENGINE if group.step is None else _OF_ENGINE[group.step.phase]


def _detail_of(group: GroupReport) -> str:
    """The share of a phase of the engine; of other steps the group's own words."""
    if group.step is None or group.phase is not GroupPhase.STARTING:
        return group.detail
    return "" if group.step.share is None else f"{group.step.share:.0%}"
