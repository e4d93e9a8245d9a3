"""Limits of older groups: each serves until the newest generation does, and is ended if it does not stay up itself.

Ray Serve restarts a group that has served without end. One of the newest generation takes its next rung or is given up
(`fallback`); an older one has no ladder, and if the newest generation is given up, nothing replaces it. While a container
tool is away neither loses anything by it: an older group starts again for as long as that takes.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, EndGroup, GiveUp, RestartGroup, TryAgain
from sparkfleet.controlplane.policy.fallback import CIRCLE, RESTARTS, is_in_circle, is_open
from sparkfleet.controlplane.policy.ladder import RETRIES, TRIES
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of, older
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
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
        if (again := _after_tool(state, now, app)) is not None:
            return again
        # Serve does not restart it, and a group that waits for memory waits for its end.
        return _end_failed(state, desired, app, "it has failed, and ") if state.has_given_up(desired) else []
    if state.may_serve(app):
        return []
    if standing.given_up:
        return [EndGroup(group=app.group, reason="it is given up")]
    why = _over_limit(app, standing, now)
    return _end_failed(state, desired, app, f"{why}, so it is not started again; ") if why else []


def _end_failed(state: FleetState, desired: Desired, app: App, why: str) -> list[Action]:
    """Gives an older group up. One on demand that was only refused its memory is loaded again, a few times.

    Args:
        why: begin of the reason, before the words about the newest generation.
    """
    refused, refusal = state.standing(app.group).refused, _refusal(state, app)
    if desired.spec.on_demand and state.has_given_up(desired) and refusal and refused < RETRIES:
        return _end_for_good(state, app.group, f"{refusal}; it waits for its turn again", refused + 1)
    return _end_for_good(state, app.group, f"{why}{_newest_words(state, desired)}")


def _after_tool(state: FleetState, now: Now, app: App) -> list[Action] | None:
    """Starts a group that serves again once more if a container tool was away at its start; None for any other."""
    served, report = state.generation_of(app.group), state.report(app.group)
    diagnosis = report.diagnosis if report is not None else None
    if served is None or diagnosis is None or diagnosis.cause is not Cause.TOOL:
        return None
    if state.standing(app.group).given_up:
        return None
    if not is_open(state, now, app):
        return []
    nodes = nodes_of(served, app.group, state.standing(app.group))
    return [RestartGroup(group=app.group, nodes=nodes, reason=f"{diagnosis}; trying again", answers=True)]


def _refusal(state: FleetState, app: App) -> str:
    """The diagnosis of a group whose memory was not free at its start, before it took any; "" for any other."""
    report = state.report(app.group)
    diagnosis = report.diagnosis if report is not None and report.was_starting else None
    is_refused = diagnosis is not None and diagnosis.cause is Cause.MEMORY and not diagnosis.began
    return str(diagnosis).rstrip(".") if is_refused else ""


def count_lost_older(state: FleetState, group: GroupKey, diagnosis: Diagnosis) -> list[Action]:
    """Counts a lost start of a group that serves until a newer one does: it has no ladder, and Serve would go on forever."""
    standing = state.standing(group)
    tried = standing.model_copy(update={"tries": standing.tries + 1})
    summary = diagnosis.summary.rstrip(".")
    if tried.tries < TRIES:
        nodes = tuple(state.starts[group])  # known even if it has not reported to this controller yet
        return [TryAgain(group=group, standing=tried, nodes=nodes, reason=f"{summary}; trying again")]
    why = f"{summary}, {TRIES} times; {_newest_words(state, state.applied[group[0]])}"
    return _end_for_good(state, group, why)


def _end_for_good(state: FleetState, group: GroupKey, why: str, refused: int = 0) -> list[Action]:
    """Gives an older group up, so that it is not brought back either, and ends it.

    Args:
        refused: times it was refused its memory; one on demand is loaded again a few times.
    """
    standing = state.standing(group)
    given_up = standing.model_copy(update={"given_up": True, "refused": refused})
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
