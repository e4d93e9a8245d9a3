"""Limits of older groups: each serves until the newest generation does, and is ended if it does not stay up itself.

Ray Serve restarts a group that has served without end. One of the newest generation takes its next rung or is given up
(`fallback`); an older one has no ladder, and if the newest generation is given up, nothing replaces it.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, EndGroup
from sparkfleet.controlplane.policy.fallback import CIRCLE, RESTARTS, end_for_good, is_in_circle, newest_words
from sparkfleet.controlplane.policy.state import FleetState, Now, older
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App


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
        why = f"it has failed, and {newest_words(state, desired)}"
        return end_for_good(state, app.group, why) if state.has_given_up(desired) else []
    if state.may_serve(app):
        return []
    if standing.given_up:
        return [EndGroup(group=app.group, reason="it is given up")]
    if not (why := _over_limit(app, standing, now)):
        return []
    words = f"{why}, so it is not started again; {newest_words(state, desired)}"
    return end_for_good(state, app.group, words)


def _over_limit(app: App, standing: Standing, now: Now) -> str:
    """The limit that an older group has reached, in words; "" if it has reached none."""
    if app.status == "starting" and standing.restarts >= RESTARTS:
        return f"it failed {standing.restarts} starts in a row"
    return CIRCLE if is_in_circle(standing, now) else ""
