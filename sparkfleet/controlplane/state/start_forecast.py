"""Predicts when a starting group will be ready: as long after its beginning as the last start of its deployment took."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

_UNDER_WAY = (*BEGINNING, GroupPhase.PROBING)


class StartForecast:
    """Begun starts, and the duration of the last one of each deployment, since the controller started.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: dict[str, tuple[str, float]] = {}
        self._took: dict[str, float] = {}

    def see(self, report: GroupReport) -> None:
        """Takes a group's report."""
        if report.phase in _UNDER_WAY:
            self._begun.setdefault(report.name, (report.deployment, self._clock()))
            return
        self._begun.pop(report.name, None)
        if report.phase is GroupPhase.READY and report.started_s and not report.adopted:
            self._took[report.deployment] = report.started_s

    def ready_at(self) -> dict[str, float]:
        """Unix seconds at which each deployment with a group that starts will have one that is ready, as far as known."""
        found: dict[str, float] = {}
        for deployment, begun in self._begun.values():
            if deployment in self._took:
                at = begun + self._took[deployment]
                found[deployment] = min(at, found.get(deployment, at))
        return found
