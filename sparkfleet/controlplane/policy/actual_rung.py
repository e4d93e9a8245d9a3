"""Groups that run at another rung than the stored one, or came up before their restart or their end was carried out.

A rung is stored before its group is deployed there. The controller may end in between, Ray Serve may refuse the deployment,
and its calls for other groups may take so long that the engine comes up meanwhile.
"""

from __future__ import annotations

from sparkfleet.controlplane.policy.actions import Action, EndGroup, RestartGroup, StayUp
from sparkfleet.controlplane.policy.ladder import passed_by
from sparkfleet.controlplane.policy.state import FleetState, Now, nodes_of
from sparkfleet.controlplane.state.desired import Desired, Standing
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

UNREADY = (GroupPhase.BARRED, *BEGINNING, GroupPhase.PROBING, GroupPhase.FAILED)
"""Phases of a group that does not serve, and whose actor is not being stopped."""


def follow_rungs(state: FleetState, now: Now) -> list[Action]:
    """Keeps the rung of a group that serves there, and restarts one that starts at a rung which it has left.

    A group that this controller has deployed at its rung is left alone: it has yet to report from there.
    """
    return [
        action
        for app in state.desired_apps
        if app.group not in state.pending.deployed
        for action in _follow(state, state.to_run[app.deployment], app)
    ]


def _follow(state: FleetState, desired: Desired, app: App) -> list[Action]:
    report, standing, plan = state.report(app.group), state.standing(app.group), desired.plan_of(app.group)
    if report is None or report.name not in state.fresh or standing.given_up:
        return []
    at = plan.rung_index(standing.rung)
    if report.rung == at or report.rung >= len(plan.ladder):
        return []
    if report.phase is GroupPhase.READY and app.status == "running":
        why = f"it serves at rung {report.rung + 1}, and was not restarted at rung {at + 1}: it goes on"
        return [StayUp(group=app.group, standing=_standing_at(standing, report), reason=why)]
    if report.phase in UNREADY and app.status == "starting":
        why = f"it starts at rung {report.rung + 1}, which it has left"
        return [RestartGroup(group=app.group, nodes=nodes_of(desired, app.group, standing), reason=why)]
    return []


def _standing_at(standing: Standing, report: GroupReport) -> Standing:
    """The position of a group that serves at the rung of its report; deaths for memory counted at the other one."""
    passed = passed_by(standing, report.rung, "not known")[: report.rung]
    vacated = tuple(at for at in standing.vacated if at < report.rung)
    return Standing(rung=report.rung, falls=standing.falls, passed=passed, vacated=vacated)


def go_on(state: FleetState, decided: RestartGroup | EndGroup) -> list[Action]:
    """Actions instead of the restart or the end of a group that came up before that was carried out."""
    report = state.report(decided.group)
    if report is None or isinstance(decided, RestartGroup):
        return []  # the next round keeps its rung
    standing = _standing_at(state.standing(decided.group), report)
    why = f"it came up at rung {report.rung + 1} before it was ended: it goes on"
    return [StayUp(group=decided.group, standing=standing, reason=why)]
