"""Names the groups for which a `down` waits, with their requests, while the controller answers."""

from __future__ import annotations

import asyncio
import contextlib

from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupPhase, GroupReport

FIRST_S = 3.0
"""Seconds before the first look: most ends take less."""
LOOK_S = 2.0
NAMED = 2
"""Groups that are named; the others are counted."""


class EndingGroups:
    """The groups of a fleet that is being stopped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.words = ""
        """Groups that still end, in words; "" if there are none, or that is not known."""

    async def watch(self) -> None:
        """Reads them again and again until the controller is gone."""
        with contextlib.suppress(SparkfleetError):
            await asyncio.sleep(FIRST_S)
            client = await self._session.find_controller()
            if client is None:
                return
            async with client:
                while True:
                    self.words = words_of(await client.fleet())
                    await asyncio.sleep(LOOK_S)
        self.words = ""


def words_of(status: FleetStatus) -> str:
    """`m/g1/0 draining (2 requests)`: the groups that end, in words."""
    found = [one for one in status.groups if one.phase is not GroupPhase.STOPPED]
    more = f" and {len(found) - NAMED} more groups" if len(found) > NAMED + 1 else ""
    named = found[:NAMED] if more else found
    return "; ".join(map(_group_words, named)) + more


def _group_words(group: GroupReport) -> str:
    count, what = group.running + group.waiting, "connection" if group.counts_connections else "request"
    left = f" ({count} {what}{'s' if count > 1 else ''})" if count else ""
    return f"{group.name} {group.phase.value}{left}"
