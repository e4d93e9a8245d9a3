"""Rolling update of a deployment: its older groups end as the desired ones start.

A desired group starts beside the older ones if memory holds both. Otherwise those on its nodes end first: those of one
desired group at a time, and the next ones end when everything that was started serves. So an edit of several replicas
leaves all but one of them serving, and one whose first group does not start ends no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sparkfleet.controlplane.policy.actions import RetireGroup
from sparkfleet.controlplane.policy.state import FleetState, nodes_of
from sparkfleet.controlplane.policy.state import replaced as groups_replaced
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.status import App
from sparkfleet.group.group_name import GroupKey, short_name
from sparkfleet.planner.report.carry_over import shared_port
from sparkfleet.planner.types.plan import Candidate

Grants = Mapping[GroupKey, bool | None]
"""Each missing group in whose way older ones are, if it is its turn, with True if it may start beside them; None while that
is not known."""


@dataclass(frozen=True)
class RollingUpdate:
    """A deployment with its older groups."""

    state: FleetState
    desired: Desired

    @cached_property
    def replaced(self) -> list[App]:
        """Groups that are no longer desired, including those that are being retired."""
        return groups_replaced(self.state, self.desired)

    @cached_property
    def missing(self) -> tuple[GroupKey, ...]:
        """Desired groups that are to start: without an application, and not given up."""
        there = {app.group for app in self.state.apps}
        return tuple(
            group
            for group in self.desired.groups
            if group not in there and not self.state.standing(group).given_up
        )

    @property
    def is_stopped(self) -> bool:
        """True if a desired group is given up and the older ones go on.

        They do not if each needs a node that does not come back: the other desired groups could serve, maybe for days.
        """
        return self.state.has_given_up(self.desired) and not (self.missing and self._older_wait_for_gone)

    @property
    def is_under_way(self) -> bool:
        """True if a desired group starts or restarts. One that waits for nodes does not count: that may take days."""
        return any(
            not self.state.may_serve(app)
            and not self._waits(app)
            and not self.state.standing(app.group).given_up
            for app in self._desired_apps
        )

    def nodes(self, group: GroupKey) -> tuple[str, ...]:
        """Nodes of a desired group at its rung."""
        return nodes_of(self.desired, group, self.state.standing(group))

    def blockers(self, group: GroupKey) -> list[App]:
        """Older groups on the nodes of a desired one, and those of generations that are not kept any more: on any node."""
        nodes = set(self.nodes(group))
        return [
            app
            for app in self.replaced
            if (there := self.state.older.get(app.group)) is None or not nodes.isdisjoint(there.shape.nodes)
        ]

    @cached_property
    def blocked(self) -> tuple[GroupKey, ...]:
        """Missing groups that have older ones on their nodes, if it is their turn: none while something is under way."""
        if self.is_stopped or self.is_under_way:
            return ()
        return tuple(group for group in self.missing if self.blockers(group))

    def port_of_both(self, group: GroupKey) -> int | None:
        """A port on which a desired group and an older one on the same node listen; None without one."""
        old = [self.state.older[app.group] for app in self.blockers(group) if app.group in self.state.older]
        return shared_port([self._candidate(group)], old)

    def ends(self, grants: Grants) -> Iterator[RetireGroup]:
        """Ends of the older groups that have to go before the next desired one starts."""
        blocked = [group for group in self.blocked if grants.get(group) is False]
        idle = {
            app.group for group in blocked for app in self.blockers(group) if not self.state.may_serve(app)
        }
        why = f"it is not ready, and generation {self.desired.generation} takes its place"
        yield from (
            RetireGroup(group=app.group, reason=why)
            for app in self.replaced
            if app.group in idle and app.status != "retiring"
        )
        in_the_way = {group: self._serving(self.blockers(group)) for group in blocked}
        starts = any(grants.get(group, True) for group in self.missing)
        if not in_the_way or starts or not all(in_the_way.values()):
            return  # one starts now, or as soon as those that end are gone
        group = min(blocked, key=lambda one: len(in_the_way[one]))
        ended = {app.group for app in in_the_way[group]}
        left = [
            app.group
            for app in self._serving([*self.replaced, *self._desired_apps])
            if app.group not in ended
        ]
        if not left and any(map(self._waits, self._desired_apps)):
            return  # what waits for nodes would have no other that serves beside it
        for app in in_the_way[group]:
            yield RetireGroup(group=app.group, reason=self._reason(group, left))

    def _reason(self, group: GroupKey, left: Sequence[GroupKey]) -> str:
        port = self.port_of_both(group)
        what = f"listen on the same port, {port}" if port is not None else "do not fit in memory at once"
        meanwhile = f"; {serving_words(left)} meanwhile" if left else ""
        return f"it and {short_name(group)} {what}{meanwhile}"

    @cached_property
    def _older_wait_for_gone(self) -> bool:
        """True if each older group needs a node that is gone, so that none of them serves."""
        gone, older = self.state.nodes.gone_when_seen(), self.state.older
        return bool(gone) and all(
            app.group in older and not gone.isdisjoint(older[app.group].shape.nodes) for app in self.replaced
        )

    def _waits(self, app: App) -> bool:
        return app.group in self.state.pending.waiting

    @property
    def _desired_apps(self) -> list[App]:
        return [app for app in self.state.desired_apps if app.deployment == self.desired.name]

    def _serving(self, apps: list[App]) -> list[App]:
        return [app for app in apps if self.state.may_serve(app)]

    def _candidate(self, group: GroupKey) -> Candidate:
        return self.desired.plan_of(group).rung_at(self.state.standing(group).rung).candidate


def serving_words(groups: Sequence[GroupKey]) -> str:
    """Groups that serve, in words: "g1/0 and g1/1 serve"."""
    return f"{' and '.join(map(short_name, groups))} {'serves' if len(groups) == 1 else 'serve'}"


def rolling_updates(state: FleetState) -> list[RollingUpdate]:
    """Deployments whose older groups are to end, in the order in which they were applied."""
    found = (RollingUpdate(state, desired) for desired in state.to_run.values())
    return [one for one in found if one.replaced and not one.is_stopped]
