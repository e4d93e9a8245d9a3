"""Reports that have reached a simulated controller, against those that it holds as the newest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkfleet.group.report import GroupReport

TAKEN_S = 15.0
"""Time limit for the reports of a group's next actor to be taken, simulated seconds."""


@dataclass
class _Arrived:
    number: int
    """The highest of this actor's."""
    first_at: float


class ArrivedReports:
    """Reports that one controller has received, by group and actor. Ids of simulated actors are their order."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[int, _Arrived]] = {}

    def take(self, report: GroupReport, newest: GroupReport | None, now: float) -> Iterator[str]:
        """Violations after a report has arrived: a newest one that is older than another of its actor, and an actor that
        is not listened to although it is the group's last.

        Args:
            report: the one that has arrived.
            newest: the controller's newest of that group; None if the controller has dropped the group.
            now: simulated seconds.
        """
        if newest is None:
            self._by_group.pop(report.name, None)
            return
        arrived, actor = self._by_group.setdefault(report.name, {}), int(report.actor)
        known = arrived.setdefault(actor, _Arrived(report.number, now))
        known.number = max(known.number, report.number)
        held, since_s = arrived.get(int(newest.actor)), now - known.first_at
        believed = f"{now:.1f} s: {report.name} is {newest.phase} by"
        if held is not None and newest.number < held.number:
            yield f"{believed} report {newest.number}, and {held.number} has arrived"
        if actor == max(arrived) and newest.actor != report.actor and since_s > TAKEN_S:
            yield f"{believed} an actor that was replaced {since_s:.1f} s ago"
