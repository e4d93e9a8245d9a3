"""Measures how long each phase of a group's start takes."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.controlplane.state.report_cache import STALE_S
from sparkfleet.controlplane.views.metrics_export import start_phase
from sparkfleet.group.report import GroupReport
from sparkfleet.telemetry.metrics import ControlMetrics


class StartPhases:
    """The phase of each start, and since when."""

    def __init__(self, metrics: ControlMetrics, steady: Callable[[], float]) -> None:
        self._metrics = metrics
        self._steady = steady
        self._now: dict[str, tuple[str, float]] = {}
        self._seen: dict[str, float] = {}

    def see(self, report: GroupReport) -> None:
        """Takes a group's report. A start that a restarted controller sees in the middle is measured from there, and one
        whose actor was away for as long as it counts as silent is another one."""
        phase, now = start_phase(report), self._steady()
        if now - self._seen.get(report.name, now) >= STALE_S:
            self._now.pop(report.name, None)
        self._seen[report.name] = now
        before = self._now.get(report.name)
        if before is not None and before[0] == phase:
            return
        if before is not None:
            self._metrics.start_phase.labels(report.deployment, before[0]).observe(now - before[1])
            del self._now[report.name]
        if phase is not None:
            self._now[report.name] = (phase, now)
