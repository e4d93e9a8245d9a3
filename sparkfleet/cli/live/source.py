"""The readings that the live view is made of: those of `status`, `logs` and `describe`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

from sparkfleet.fleet.deployments import FleetOverview, fleet_state
from sparkfleet.fleet.rank_logs import rank_log
from sparkfleet.fleet.report.status_lines import LastStart
from sparkfleet.fleet.report.step_times import last_start_s, load_step_times
from sparkfleet.fleet.session import Session
from sparkfleet.runtime.files.fleet_paths import FleetPaths

TAIL = 500
"""Lines of a log that are read first."""


class Source(Protocol):
    """A fleet to watch."""

    fleet: str
    """Its name."""
    last_start: LastStart

    async def overview(self) -> FleetOverview:
        """The nodes, deployments and last events. Raises SparkfleetError."""
        ...

    def log(self, name: str, replica: int, rank: int) -> AsyncIterator[bytes]:
        """The log of a rank, without end. Raises SparkfleetError."""
        ...


class SessionSource:
    """The fleet of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.fleet = session.inventory.fleet
        times = load_step_times(FleetPaths.default(self.fleet).step_times)
        self.last_start: LastStart = partial(last_start_s, times)

    async def overview(self) -> FleetOverview:
        """The reading of `status`."""
        return await fleet_state(self._session)

    def log(self, name: str, replica: int, rank: int) -> AsyncIterator[bytes]:
        """The reading of `logs --follow`."""
        return rank_log(self._session, name, replica=replica, rank=rank, tail=TAIL, follow=True)
