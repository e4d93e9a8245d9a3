"""A fleet that exists as values only: what a policy's actions make of it, round by round, on a clock moved by hand."""

from dataclasses import replace
from functools import cache

from control_values import deployment, plan

from sparkfleet.controlplane.policy.actions import (
    BeginAttempt,
    EndGroup,
    RestartGroup,
    RetireGroup,
    StartGroup,
)
from sparkfleet.controlplane.policy.decide import decide
from sparkfleet.controlplane.policy.phase_change import on_report
from sparkfleet.controlplane.policy.state import Now, SeenNodes
from sparkfleet.controlplane.policy.state_after import after
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App, NodeReport
from sparkfleet.group.report import GroupPhase, GroupReport

NODES = ("this", "that")


@cache
def desired(name, generation=1, groups=1, rungs=1, nodes=(("this",),)):
    """A deployment; of each rung of its ladders the nodes, over and over."""
    made = plan(name, groups=groups, rungs=rungs)
    ladder = tuple(
        rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"shape": shape})})
        for at, rung in enumerate(made.groups[0].ladder)
        for shape in [rung.candidate.shape.model_copy(update={"nodes": nodes[at % len(nodes)]})]
    )
    group = made.groups[0].model_copy(update={"ladder": ladder})
    made = made.model_copy(update={"groups": (group,) * groups})
    return Desired(spec=deployment(name), plan=made, generation=generation, who="me", since=0.0)


def seen(looked_at=0.0, **boots):
    """All nodes as they were seen; None: it is away."""
    nodes = [NodeReport(name=name, joined=boot is not None, boot=boot or "") for name, boot in boots.items()]
    return SeenNodes.only(NodeReport(name="this", joined=True, boot="first")).seen(
        nodes, looked_at, Now.at(looked_at)
    )


def observed(apps, actions):
    """Applications as Serve reports them once the actions are done."""
    there = {app.group: app for app in apps}
    for action in actions:
        match action:
            case StartGroup(group=group) | RestartGroup(group=group):
                there[group] = application(group, "starting")
            case RetireGroup(group=group) | EndGroup(group=group) if group in there:
                there[group] = application(group, "retiring")
    return tuple(there.values())


def application(group, status):
    return App(deployment=group[0], generation=group[1], replica=group[2], status=status)


class PolicyWorld:
    """Rounds of a policy.

    Args:
        state: how it begins.
        start: of a group that starts, why that fails; None: it is ready.
    """

    def __init__(self, state, start=lambda group: None):
        self.state = state
        self.start = start
        self.seconds = 0.0
        self.began = []
        """Groups that were started, in order."""

    def round(self):
        """Decide and do; then a second passes, in which starts end and what retires is gone."""
        now = Now.at(self.seconds)
        actions = decide(self.state, now)
        self.began += [a.group for a in actions if isinstance(a, BeginAttempt)]
        state = after(self.state, actions, now)
        self.state = replace(state, apps=observed(state.apps, actions))
        self._pass()
        return actions

    def _pass(self):
        self.seconds += 1.0
        apps = [app for app in self.state.apps if app.status != "retiring"]
        self.state = replace(self.state, apps=tuple(apps))
        self.look()
        for app in apps:
            if app.status == "starting":
                self._end(app)
            elif app.status == "running" and self._is_late(app):
                self._report(app, GroupPhase.READY)
        failed = [app.name for app in self.state.apps if app.status == "failed"]
        self.state = replace(self.state, pending=self.state.pending.answered_only(failed))

    def look(self):
        """The nodes, as they are: all there."""
        self.state = replace(self.state, nodes=seen(self.seconds, this="first", that="first"))

    def _is_late(self, app):
        """True if the last report of a group that runs is from before it did: its next one is that it is ready."""
        report = self.state.report(app.group)
        return report is not None and report.phase is not GroupPhase.READY

    def _end(self, app):
        why = self.start(app.group)
        self._report(app, GroupPhase.STARTING)
        self._report(
            app, GroupPhase.FAILED if why else GroupPhase.READY, diagnosis=why, was_starting=why is not None
        )
        ended = application(app.group, "failed" if why else "running")
        apps = tuple(ended if one.group == app.group else one for one in self.state.apps)
        self.state = replace(self.state, apps=apps)

    def _report(self, app, phase, **fields):
        report = GroupReport(
            deployment=app.deployment,
            generation=app.generation,
            replica=app.replica,
            rung=self.state.standing(app.group).rung,
            phase=phase,
            node="this",
            since=self.seconds,
            **fields,
        )
        now = Now.at(self.seconds)
        told = after(self.state, on_report(self.state, report, now), now)
        others = [one for one in told.reports if one.group != app.group]
        self.state = replace(told, reports=(*others, report), fresh=told.fresh | {report.name})
