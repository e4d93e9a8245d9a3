"""Sends a group's reports: each change with the next number, and the last report again while something waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from typing import Protocol

from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.group.serving_watch import send_heartbeats
from sparkfleet.group.tasks import cancel


class GroupReporter(Protocol):
    """Receives a group's reports. Never raises: a controller that is away must not stop a group."""

    def __call__(self, report: GroupReport) -> None:
        """Sends the report without waiting."""
        ...


class ReportSender:
    """Sends the reports of one actor of a group, each made from the last one.

    Args:
        launch: of the group.
        report: receives each report.
    """

    def __init__(self, launch: GroupLaunch, report: GroupReporter) -> None:
        self._report_to = report
        self._last = GroupReport(
            deployment=launch.deployment,
            generation=launch.generation,
            replica=launch.replica,
            phase=GroupPhase.STARTING,
            node=launch.placements[0].node,
            engine=launch.candidate.engine,
            rung=launch.rung,
            since=time.time(),
            actor=uuid.uuid4().hex,
        )

    @property
    def last(self) -> GroupReport:
        """The last report that was sent; before the first, one with number 0 that is never sent."""
        return self._last

    def enter(self, phase: GroupPhase, detail: str = "", **fields: object) -> None:
        """Sends the next report: the last one with this phase, this detail and these fields.

        A step is of one report only: it is None unless it is among the fields.
        """
        since = self._last.since if phase is self._last.phase else time.time()
        number = self._last.number + 1
        update = {"phase": phase, "detail": detail, "since": since, "step": None, "number": number, **fields}
        self._last = self._last.model_copy(update=update)
        self._report_to(self._last)

    @contextlib.asynccontextmanager
    async def repeating(self) -> AsyncIterator[None]:
        """Repeats the last report until the block ends, as a silent group counts as gone: a pause before a restart, a first
        token, a measurement and a drain take longer than that."""
        beating = asyncio.create_task(send_heartbeats(self._repeat))
        try:
            yield
        finally:
            await cancel(beating)

    def _repeat(self) -> None:
        if self._last.phase is not GroupPhase.FAILED:  # a restarted controller would count it again
            self._report_to(self._last)
