"""The generation of a deployment that starts: the desired one, or the last that served if all of that was given up.

A deployment that is not on demand runs always: the older generation starts as soon as nothing of it runs. One on demand
starts for a request, so that a generation that does not start is left out by each of its loads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparkfleet.controlplane.policy.ladder import RETRIES
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.group.group_name import GroupKey


class StartChoice(NamedTuple):
    """A generation of a deployment, with its groups that may start."""

    generation: Desired
    groups: tuple[GroupKey, ...]


def loadable(state: FleetState, desired: Desired) -> list[StartChoice]:
    """Generations of a deployment on demand that a request may start, the preferred one first; none: all are given up.

    A group that was only refused its memory is tried again.
    """
    found = [StartChoice(one, _those(state, one, _may_load)) for one in _generations(state, desired)]
    return [one for one in found if one.groups]


def to_start(state: FleetState, desired: Desired) -> StartChoice:
    """The generation of a loaded deployment that runs or is to start; without groups if all are given up."""
    found = [StartChoice(one, _those(state, one, _is_kept)) for one in _generations(state, desired)]
    return next((one for one in found if one.groups), StartChoice(desired, ()))


def startable(state: FleetState, desired: Desired) -> int | None:
    """The generation of a deployment on demand that serves, starts, or starts with its next request; None: none can."""
    choices = [to_start(state, desired)] if state.is_loaded(desired) else []
    choices += loadable(state, desired)
    return next((one.generation.generation for one in choices if one.groups), None)


def is_down(state: FleetState, desired: Desired) -> bool:
    """True if every desired group is given up, and nothing of the deployment runs, starts or ends."""
    runs = any(app.deployment == desired.name and app.status != "failed" for app in state.apps)
    return not runs and all(state.standing(group).given_up for group in desired.groups)


def to_bring_back(state: FleetState) -> list[StartChoice]:
    """Generations that served, of deployments that are down, each with its groups that were not given up since.

    One of them that has failed without that starts again by itself (`older_groups`).
    """
    there = {app.group for app in state.apps}
    found = [
        StartChoice(served, tuple(group for group in _those(state, served, _is_kept) if group not in there))
        for name, served in state.last_served.items()
        if name in state.to_run and is_down(state, state.to_run[name])
    ]
    return [one for one in found if one.groups]


def _generations(state: FleetState, desired: Desired) -> list[Desired]:
    served = state.last_served.get(desired.name)
    return [desired] if served is None else [desired, served]


def _those(state: FleetState, one: Desired, chosen: Callable[[Standing], bool]) -> tuple[GroupKey, ...]:
    return tuple(group for group in one.groups if chosen(state.standing(group)))


def _is_kept(standing: Standing) -> bool:
    return not standing.given_up


def _may_load(standing: Standing) -> bool:
    return not standing.given_up or 0 < standing.refused <= RETRIES
