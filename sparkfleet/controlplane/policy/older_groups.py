"""Limits of older groups: each serves until the newest generation does, and is ended if it does not stay up itself.

Ray Serve restarts a group that has served without end. One of the newest generation takes its next rung or is given up
(`fallback`); an older one has no ladder, and if the newest generation is given up, nothing replaces it.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, EndGroup, GiveUp, TryAgain
from sparkfleet.controlplane.policy.fallback import CIRCLE, RESTARTS, is_in_circle
from sparkfleet.controlplane.policy.ladder import TRIES
from sparkfleet.controlplane.policy.state import FleetState, Now, older
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.group.group_name import GroupKey


def end_older(state: FleetState, now: Now) -> list[Action]:
    """Gives up older groups that fail at each restart, or come up and fail too often."""
    return [
        action
        for desired in state.to_run.values()
        for app in older(state, desired)
        for action in _end(state, now, desired, app)
    ]


def _end(state: FleetState, now: Now, desired: Desired, app: App) -> list[Action]:
    standing = state.standing(app.group)
    if app.status == "failed":
        # Serve does not restart it, and a group that waits for memory waits for its end.
        why = f"it has failed, and {_newest_words(state, desired)}"
        return _end_for_good(state, app.group, why) if state.has_given_up(desired) else []
    if state.may_serve(app):
        return []
    if standing.given_up:
        return [EndGroup(group=app.group, reason="it is given up")]
    if not (why := _over_limit(app, standing, now)):
        return []
    words = f"{why}, so it is not started again; {_newest_words(state, desired)}"
    return _end_for_good(state, app.group, words)


def count_lost_older(state: FleetState, group: GroupKey, diagnosis: Diagnosis) -> list[Action]:
    """Counts a lost start of a group that serves until a newer one does: it has no ladder, and Serve would go on forever."""
    standing = state.standing(group)
    tried = standing.model_copy(update={"tries": standing.tries + 1})
    summary = diagnosis.summary.rstrip(".")
    if tried.tries < TRIES:
        nodes = tuple(state.starts[group])  # known even if it has not reported to this controller yet
        return [TryAgain(group=group, standing=tried, nodes=nodes, reason=f"{summary}; trying again")]
    why = f"{summary}, {TRIES} times; {_newest_words(state, state.to_run[group[0]])}"
    return _end_for_good(state, group, why)


def _end_for_good(state: FleetState, group: GroupKey, why: str) -> list[Action]:
    """Gives an older group up, so that it is not brought back either, and ends it."""
    standing = state.standing(group)
    given_up = standing.model_copy(update={"given_up": True})
    found: list[Action] = [] if standing.given_up else [GiveUp(group=group, standing=given_up, reason=why)]
    if any(app.group == group for app in state.apps):
        found.append(EndGroup(group=group, reason=why))
    return found


def _newest_words(state: FleetState, desired: Desired) -> str:
    """The generation that was to replace a group that ends, in words."""
    if not state.has_given_up(desired):
        return f"generation {desired.generation} replaces it"
    return f"generation {desired.generation} did not start either; `sparkfleet apply` tries once more"


def _over_limit(app: App, standing: Standing, now: Now) -> str:
    """The limit that an older group has reached, in words; "" if it has reached none."""
    if app.status == "starting" and standing.restarts >= RESTARTS:
        return f"it failed {standing.restarts} starts in a row"
    return CIRCLE if is_in_circle(standing, now) else ""
