"""Reports of simulated groups on their way to the controller: late, twice, in another order, or lost."""

from __future__ import annotations

import contextlib
import random
import sqlite3

from sparkfleet.group.group_name import GroupKey
from sparkfleet.group.report import GroupReport
from sparkfleet.lab.simulation.arrived_reports import ArrivedReports
from sparkfleet.lab.simulation.controller_processes import ControllerProcesses
from sparkfleet.lab.simulation.published_tables import left_out, table_of
from sparkfleet.lab.simulation.serve import SimulatedServe
from sparkfleet.lab.simulation.timeline import Timeline


class ReportChannel:
    """Way of all groups' reports.

    Args:
        time: the simulated clock.
        chance: the seed's.
        violations: takes what a report breaks that has arrived.
    """

    def __init__(self, time: Timeline, chance: random.Random, violations: list[str]) -> None:
        self._time = time
        self._chance = chance
        self._violations = violations
        self.loses = 0.0
        """Share of reports that are lost on their way."""
        self.ready_at: dict[GroupKey, float] = {}
        """Unix seconds of each engine's readiness by a wall clock that was never set back."""
        self._arrived = ArrivedReports()  # at this controller
        self._inbox: list[GroupReport] = []
        self._delivering = False

    @property
    def is_empty(self) -> bool:
        """True if none has arrived that the controller has not taken."""
        return not self._inbox

    def clear(self) -> None:
        """Drops those that have arrived: what is sent to an actor that is not there is lost."""
        self._inbox.clear()

    def begin(self) -> None:
        """Another controller takes them from now on."""
        self._arrived = ArrivedReports()

    async def deliver(self, processes: ControllerProcesses, serve: SimulatedServe) -> None:
        """Let the reports that have arrived reach the controller."""
        if processes.controller is None:
            self.clear()
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._inbox and processes.controller is not None:
                report, controller = self._inbox.pop(0), processes.controller
                known = (await table_of(controller)).version
                with contextlib.suppress(sqlite3.Error):  # goes back to the group, which repeats it
                    await controller.intake.report(report)
                newest = controller.fleet.reports.newest(report.name)
                self._violations += self._arrived.take(report, newest, self._time.seconds)
                if (table := await table_of(controller)).version != known:
                    self._violations += left_out(table, controller, serve, self._time.seconds)
        finally:
            self._delivering = False

    def send(self, report: GroupReport) -> None:
        """Takes a change that a group reports."""
        if report.phase == "ready":
            self.ready_at.setdefault(report.group, self._time.unix() + self._time.set_back_s)
        if self._chance.random() < self.loses:
            return
        times = 2 if self._chance.random() < 0.05 else 1
        for _ in range(times):
            delay = 0.0 if self._chance.random() < 0.5 else self._chance.uniform(0, 2)
            self._time.after(delay, lambda: self._inbox.append(report))

    def repeat(self, report: GroupReport) -> None:
        """Takes a report that only repeats what was sent before."""
        if self._chance.random() >= self.loses:
            self._inbox.append(report)
