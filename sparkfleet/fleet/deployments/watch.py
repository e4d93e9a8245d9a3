"""Follows deployments until they serve, fail, or are deleted. Cancelling this stops no deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.status import DeploymentStatus, FleetStatus
from sparkfleet.engines.startup_phases import PhaseName
from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments.ending_words import ending_words
from sparkfleet.fleet.events import FactFound, FleetEvent, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.group.group_name import GroupKey, short_name
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.planner.report.diff import compare
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import moment_words

WAIT_S = 1.0
"""Longest wait of a call for events; then the step is determined again."""

PASSING = frozenset({"progress"})
"""Kinds of events with the progress of a start only; they are left out of a deployment's history."""
STEPS = PASSING | {"wanted", "starting", "preparing", "probing"}
"""Kinds of events that are shown as steps while a start is followed."""


async def until_settled(
    client: FleetClient,
    wanted: Mapping[str, int],
    after: int,
    on_event: OnEvent = ignored,
    own: Mapping[str, Deployment] = MappingProxyType({}),
) -> dict[str, DeploymentStatus]:
    """Send events until every wanted deployment is ready, waits for demand, or has failed. Returns their last status.

    Args:
        client: of the controller, entered.
        wanted: generations by the deployments' names.
        after: number of the last event that was seen.
        on_event: receives the events of these deployments, and the current step of the start.
        own: what was applied, by name, for the difference from a newer generation.

    Raises:
        ControlError: one of them was deleted meanwhile, or replaced by a newer generation.
    """
    while True:
        for event in await client.events(after, wait_s=WAIT_S):
            after = event.id
            if event.deployment in wanted and event.kind not in STEPS:
                on_event(FleetEvent(event=event))
        fleet = await client.fleet()
        if lost := wanted.keys() - {one.name for one in fleet.deployments if one.state != "stopping"}:
            raise ControlError(
                f"{', '.join(sorted(lost))}: was deleted, or the fleet was taken down, in the meantime."
            )
        _require_own(fleet, wanted, own)
        settled = _settled(fleet, wanted)
        if len(settled) == len(wanted):
            return settled
        names = wanted.keys() - settled.keys()
        on_event(starting_step([one for one in fleet.deployments if one.name in names]))


async def until_gone(client: FleetClient, name: str, after: int, on_event: OnEvent) -> None:
    """Send events until every group of a deployment has ended."""
    is_named = False
    while (gone := (status := await client.fleet()).named(name)) is not None:
        used = {rank.node for group in gone.groups for rank in group.ranks}
        silent = [one.name for one in status.nodes if one.name in used and one.silent_s is not None]
        if silent and not is_named:
            is_named = True
            on_event(FactFound(line=not_ended(silent, [name])))
        left = ending_words(gone.groups)
        on_event(StepRunning(step=FleetStep.STOPPING, detail=left, subjects=(name,)))
        for event in await client.events(after, name, wait_s=WAIT_S):
            after = event.id
            if event.kind not in PASSING:
                on_event(FleetEvent(event=event))


def not_ended(nodes: Sequence[str], names: Sequence[str]) -> str:
    """The reason for which the end of deployments waits for nodes that do not answer."""
    from sparkfleet.controlplane.policy.pending_starts import (
        RAY_GONE_S,
    )  # a slow import, for a node that is away

    is_one = len(nodes) == 1
    return (
        f"{', '.join(nodes)} {'does' if is_one else 'do'} not answer: what {', '.join(names)} ran there counts as ended once"
        f" Ray counts {'the node' if is_one else 'them'} as gone, which takes {RAY_GONE_S:.0f} s; until then it may still"
        " serve."
    )


def _require_own(status: FleetStatus, wanted: Mapping[str, int], own: Mapping[str, Deployment]) -> None:
    """Raises ControlError if somebody else's generation has replaced a wanted one: its state is not that of this one."""
    for one in status.deployments:
        if one.generation > wanted.get(one.name, one.generation):
            means = f"{_left_of(one, wanted[one.name])} {_difference(one, own.get(one.name))}".strip()
            raise ControlError(
                f"{one.name}: generation {wanted[one.name]}, which this command applied, was replaced by generation"
                f" {one.generation} of {one.who}, {moment_words(one.since)}.",
                means=means,
                do=f"`sparkfleet describe {one.name}` shows the newer one; the same command again plans from it.",
            )


def _left_of(newer: DeploymentStatus, generation: int) -> str:
    """Groups that go on of a generation which a newer one has replaced, in words.

    Groups of still earlier ones count, too: it had carried them over.
    """
    older = [group for group in newer.groups if group.generation <= generation]
    kept = sorted({one.group for one in older if newer.index_of(one.group) is not None})
    serving = [one.group for one in older if one.group not in kept and one.phase is GroupPhase.READY]
    if kept:
        are = "goes" if len(kept) == 1 else "go"
        return f"{_names(kept)} {are} on in generation {newer.generation}, without a restart."
    if serving and newer.state != "ready":
        serve = f"{_names(serving)} {'serves' if len(serving) == 1 else 'serve'}"
        newest = f"generation {newer.generation}"
        return (
            f"{serve}, as {newest} did not start."
            if newer.state == "failed"
            else f"{serve} until {newest} is ready."
        )
    return f"No group of generation {generation} serves any more."


def _names(groups: Sequence[GroupKey]) -> str:
    return " and ".join(map(short_name, groups))


def _difference(newer: DeploymentStatus, own: Deployment | None) -> str:
    if own is None or newer.plan is None or not newer.spec:
        return ""
    fields = compare(Deployment.model_validate_json(newer.spec), newer.plan, (own, newer.plan)).fields
    return f"The newer one has {'; '.join(fields)}." if fields else ""


def _settled(status: FleetStatus, wanted: Mapping[str, int]) -> dict[str, DeploymentStatus]:
    return {
        d.name: d
        for d in status.deployments
        if d.name in wanted and d.generation == wanted[d.name] and d.state in ("ready", "failed", "unloaded")
    }


# --- the step of a start ----------------------------------------------------------------------------------------------

ORDER = tuple(FleetStep)
_OF_ENGINE: Mapping[PhaseName, FleetStep] = {
    "loading": FleetStep.LOADING,
    "compiling": FleetStep.COMPILING,
    "warming": FleetStep.WARMING_UP,
    "up": FleetStep.FIRST_TOKEN,
}


def starting_step(deployments: Sequence[DeploymentStatus]) -> StepRunning:
    """The current step of starting deployments: the earliest one of all their groups, which is named if there are several
    in its deployment. Pure."""
    names = tuple(sorted(one.name for one in deployments))
    starting = [
        (group, one)
        for one in deployments
        for group in one.groups
        if one.index_of(group.group) is not None and group.phase in (*BEGINNING, GroupPhase.PROBING)
    ]
    if not starting:
        detail = next((one.detail for one in deployments if one.detail), "")
        return StepRunning(step=FleetStep.WAITING, detail=detail, subjects=names)
    first, of = min(starting, key=lambda one: ORDER.index(step_of_group(one[0])))
    detail = step_detail(first)
    if of.plan is not None and len(of.plan.groups) > 1:
        detail = ": ".join(filter(None, (_group_words(first, of, len(names) > 1), detail)))
    return StepRunning(step=step_of_group(first), detail=detail, subjects=names)


def _group_words(group: GroupReport, of: DeploymentStatus, several: bool) -> str:
    """`g3/1`, with its deployment's name if there are several, as `status` names it."""
    return f"{of.name}/{short_name(group.group)}" if several else short_name(group.group)


def step_of_group(group: GroupReport) -> FleetStep:
    """The current step of one group's start. Pure."""
    if not group.ranks:
        return FleetStep.WAITING
    if group.phase is GroupPhase.PREPARING and group.detail:  # no detail: the model exists already
        return FleetStep.TRAINING
    if group.phase is GroupPhase.PROBING:
        return FleetStep.FIRST_TOKEN
    return FleetStep.STARTING_ENGINE if group.step is None else _OF_ENGINE[group.step.phase]


def step_detail(group: GroupReport) -> str:
    """The percentage of the engine's phase; for other steps the group's own detail, without the step's own word."""
    if group.step is None or group.phase is not GroupPhase.STARTING:
        return group.detail.removeprefix(f"{step_of_group(group).value} ")
    return "" if group.step.share is None else f"{group.step.share:.0%}"
