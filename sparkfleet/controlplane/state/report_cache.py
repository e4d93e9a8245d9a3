"""Newest reports of groups and gateways. In memory only: they are repeated every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from sparkfleet.gateway.report import GatewayReport
from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import HEARTBEAT_S, GroupPhase, GroupReport

STALE_S = 15.0
"""Seconds without a report after which a group does not count as ready."""
FORGET_S = 600.0
"""Seconds without a report after which a gateway replica counts as a new one."""
REPLACED_S = 3 * HEARTBEAT_S
"""Seconds after a report of a group's actor in which another actor that reported before it counts as replaced. Not for
ever: of two actors that report in turns the one that lives must win, whichever was known first."""
ACTORS = 8
"""Most actors of a group of which the last report's number is remembered."""

_LAST = (GroupPhase.STOPPED, GroupPhase.FAILED)
"""Phases after which an actor reports no more."""


class ReportOrder(Enum):
    """Place of a report among those of its group. Ray does not keep the order of calls of an actor that is asynchronous."""

    NEWEST = auto()
    OVERTAKEN = auto()
    """A newer one of the same actor, or the same one after its actor was replaced, has arrived before."""
    LATE = auto()
    """The last news of an actor that has been replaced."""


class ReportCache:
    """The newest report of each group and of each gateway replica."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._groups: dict[str, tuple[float, GroupReport]] = {}
        self._gateways: dict[str, tuple[float, GatewayReport]] = {}
        self._began = steady()
        self._repeated: set[str] = set()
        """Groups whose next report counts as a change."""
        self._numbers: dict[str, dict[str, int]] = {}
        """By group: the number of the last report of each actor, in the order in which these were known."""

    def order(self, report: GroupReport) -> ReportOrder:
        """Notes the number of a group's report, and returns its place among those that have arrived.

        Only the newest is to be stored, by `group`.
        """
        before = self._groups.get(report.name)
        if not report.actor or before is None:
            self._numbers[report.name] = {report.actor: report.number}
            return ReportOrder.NEWEST
        numbers = self._numbers.setdefault(report.name, {})
        known, (at, last) = numbers.get(report.actor), before
        another_lives = report.actor != last.actor and last.phase not in _LAST
        is_replaced = known is not None and another_lives and self._steady() - at < REPLACED_S
        if known is not None and (report.number < known or (is_replaced and report.number == known)):
            return ReportOrder.OVERTAKEN
        numbers[report.actor] = report.number
        if len(numbers) > ACTORS:
            del numbers[next(iter(numbers))]
        return ReportOrder.LATE if is_replaced else ReportOrder.NEWEST

    def group(self, report: GroupReport) -> bool:
        """Stores a group's newest report; True if its phase has changed, or counts as changed."""
        before = self._groups.get(report.name)
        changed = report.name in self._repeated or before is None or before[1].phase is not report.phase
        self._groups[report.name] = (self._steady(), report)
        self._repeated.discard(report.name)
        return changed

    def repeat(self, name: str) -> None:
        """Counts the next report of this group as a change of its phase: what followed from this one could not be stored."""
        self._repeated.add(name)

    def newest(self, name: str) -> GroupReport | None:
        """The newest report of a group, however old; None if there is none."""
        found = self._groups.get(name)
        return found[1] if found else None

    def gateway(self, report: GatewayReport) -> bool:
        """Stores a gateway replica's report; True if the replica is new."""
        now, new = self._steady(), report.replica not in self._gateways
        known = {replica: entry for replica, entry in self._gateways.items() if now - entry[0] < FORGET_S}
        self._gateways = {**known, report.replica: (now, report)}
        return new

    def groups(self) -> tuple[GroupReport, ...]:
        """The newest report of every group, however old; those of silent groups with the time since."""
        now = self._steady()
        return tuple(
            report if now - at < STALE_S else report.model_copy(update={"silent_s": now - at})
            for at, report in self._groups.values()
        )

    def fresh(self) -> tuple[GroupReport, ...]:
        """Reports of groups that are not silent."""
        now = self._steady()
        return tuple(report for at, report in self._groups.values() if now - at < STALE_S)

    def outline(self) -> list[tuple[object, ...]]:
        """Phase, rung, failure and measured speed of each group, on which the gateways' table and the policy depend."""
        now = self._steady()
        return [
            (
                one.name,
                one.phase,
                one.since,
                one.detail,
                one.rung,
                one.diagnosis,
                one.was_starting,
                one.measured.get("decode_tps"),
                now - at < STALE_S,
            )
            for at, one in self._groups.values()
        ]

    def gateways(self) -> tuple[GatewayReport, ...]:
        """Reports of gateway replicas that are not silent: the others were replaced."""
        now = self._steady()
        return tuple(report for at, report in self._gateways.values() if now - at < STALE_S)

    @property
    def gateway_silent_s(self) -> float:
        """Seconds since the last report of a gateway, or since this began if none has reported."""
        newest = max((at for at, _ in self._gateways.values()), default=self._began)
        return self._steady() - newest

    def forget(self, keep: Collection[GroupKey]) -> None:
        """Drops reports of other groups."""
        self._groups = {name: entry for name, entry in self._groups.items() if entry[1].group in keep}
        self._numbers = {name: numbers for name, numbers in self._numbers.items() if name in self._groups}
        self._repeated &= self._groups.keys()
