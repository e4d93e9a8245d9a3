"""Collects the draft tokens of deployments' own requests from the counters of their groups, and writes them now and then."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable

from sparkfleet.controlplane.state.tables.draft_hours import DraftHours
from sparkfleet.controlplane.state.tables.draft_traffic import DraftCounts, DraftSetup, counts_of
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

WRITE_S = 60.0
"""Seconds between two writes: what was counted in between is lost with the controller's process."""
MOST_GROUPS = 1_000
"""Groups whose counters are remembered; of one that has gone without a last report, they would be for ever."""
_UNCOUNTED = (*BEGINNING, GroupPhase.PROBING, GroupPhase.STOPPED, GroupPhase.FAILED)
"""Phases without requests: the next counters are those of another engine, or of checks."""


class DraftCollector:
    """Draft tokens since each group's counters were read last.

    The first counters of an engine count nothing: they have the checks of its start, and what its requests had before this
    controller began, which an earlier one may have counted.
    """

    def __init__(self, hours: DraftHours, steady: Callable[[], float]) -> None:
        self._hours = hours
        self._steady = steady
        self._seen: dict[str, tuple[str, DraftSetup, DraftCounts]] = {}
        """By group: its actor, its setup, and its counters as read last."""
        self._more: dict[tuple[str, DraftSetup], DraftCounts] = defaultdict(DraftCounts)
        self._written = steady()

    def take(self, report: GroupReport, setup: DraftSetup | None) -> None:
        """Counts what a group's engine has drafted since its last report.

        Args:
            report: of the group.
            setup: what its rung drafts with; None without drafts, or if its plan is not known.
        """
        if setup is None or report.phase in _UNCOUNTED:
            self._seen.pop(report.name, None)
        elif report.draft_steps:  # an actor that adopted an engine reports 0 until it has read the counters
            self._count(report, setup)
        self._write()

    def _count(self, report: GroupReport, setup: DraftSetup) -> None:
        now = counts_of(report)
        actor, known, before = self._seen.pop(report.name, ("", None, DraftCounts()))
        self._seen[report.name] = (report.actor, setup, now)
        if len(self._seen) > MOST_GROUPS:
            del self._seen[next(iter(self._seen))]
        more = now.since(before) if (actor, known) == (report.actor, setup) else None
        if more is not None and more.steps > 0:
            key = (report.deployment, setup)
            self._more[key] = self._more[key].plus(more)

    def _write(self) -> None:
        if not self._more or self._steady() - self._written < WRITE_S:
            return
        self._written = self._steady()
        # A full disk: the report counts all the same, and the next write has these, too.
        try:
            self._hours.add(self._more)
        except sqlite3.Error:
            return
        self._more.clear()
