"""Predicts when a starting group will be ready: as long after its beginning as the last start of its deployment took, or, at
its first start, as long as its plan predicts."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport

_UNDER_WAY = (*BEGINNING, GroupPhase.PROBING)


class StartForecast:
    """Begun starts, and the duration of the last one of each deployment.

    Args:
        clock: Unix seconds.
        earlier: seconds of a deployment's last start before this controller's, as far as it is kept.
        predicted: seconds of a group's start by its plan.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        earlier: Callable[[str], float | None],
        predicted: Callable[[GroupReport], float | None],
    ) -> None:
        self._clock = clock
        self._read_earlier = earlier
        self._predict = predicted
        self._begun: dict[GroupKey, float] = {}
        self._predicted: dict[GroupKey, float] = {}
        self._took: dict[str, float | None] = {}
        """By deployment; None: nothing is kept of it."""

    def see(self, report: GroupReport) -> None:
        """Takes a group's report."""
        if report.phase in _UNDER_WAY:
            if report.group not in self._begun:
                self._begun[report.group] = self._clock()
                if (seconds := self._predict(report)) is not None:
                    self._predicted[report.group] = seconds
            return
        self._begun.pop(report.group, None)
        self._predicted.pop(report.group, None)
        if report.phase is GroupPhase.READY and report.started_s and not report.adopted:
            self._took[report.deployment] = report.started_s

    def ready_at(self) -> dict[str, float]:
        """Unix seconds at which each deployment with a group that starts will have one that is ready, as far as known."""
        found: dict[str, float] = {}
        for group, begun in self._begun.items():
            deployment = group[0]
            seconds = self.last_start_s(deployment) or self._predicted.get(group)
            if seconds is not None:
                found[deployment] = min(begun + seconds, found.get(deployment, begun + seconds))
        return found

    def last_start_s(self, deployment: str) -> float | None:
        """Seconds of the last start of a deployment; None if none is kept."""
        if deployment not in self._took:
            self._took[deployment] = self._read_earlier(deployment)
        return self._took[deployment]

    def forget(self, keep: Collection[GroupKey]) -> None:
        """Drops the starts of other groups: one that was ended in the middle reports no end."""
        self._begun = {group: begun for group, begun in self._begun.items() if group in keep}
        self._predicted = {group: seconds for group, seconds in self._predicted.items() if group in keep}
