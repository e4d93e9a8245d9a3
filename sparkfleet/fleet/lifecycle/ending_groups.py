"""Names the groups for which a `down` waits, with their requests, while the controller answers."""

from __future__ import annotations

import asyncio
import contextlib

from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.deployments.ending_words import ending_words
from sparkfleet.fleet.session import Session

FIRST_S = 3.0
"""Seconds before the first look: most ends take less."""
LOOK_S = 2.0


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
                    self.words = ending_words((await client.fleet()).groups)
                    await asyncio.sleep(LOOK_S)
        self.words = ""
