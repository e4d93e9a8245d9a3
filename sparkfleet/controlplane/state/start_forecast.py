"""Predicts when a starting group will be ready: as long after its beginning as the last start of its deployment took."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

_UNDER_WAY = (*BEGINNING, GroupPhase.PROBING)


class StartForecast:
    """Begun starts, and the duration of the last one of each deployment, since the controller started."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: dict[GroupKey, float] = {}
        self._took: dict[str, float] = {}

    def see(self, report: GroupReport) -> None:
        """Takes a group's report."""
        if report.phase in _UNDER_WAY:
            self._begun.setdefault(report.group, self._clock())
            return
        self._begun.pop(report.group, None)
        if report.phase is GroupPhase.READY and report.started_s and not report.adopted:
            self._took[report.deployment] = report.started_s

    def ready_at(self) -> dict[str, float]:
        """Unix seconds at which each deployment with a group that starts will have one that is ready, as far as known."""
        found: dict[str, float] = {}
        for (deployment, _, _), begun in self._begun.items():
            if deployment in self._took:
                at = begun + self._took[deployment]
                found[deployment] = min(at, found.get(deployment, at))
        return found

    def last_start_s(self, deployment: str) -> float | None:
        """Seconds of the last start of a deployment; None if none has ended since the controller started."""
        return self._took.get(deployment)

    def forget(self, keep: Collection[GroupKey]) -> None:
        """Drops the starts of other groups: one that was ended in the middle reports no end."""
        self._begun = {group: begun for group, begun in self._begun.items() if group in keep}
