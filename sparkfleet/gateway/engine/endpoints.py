"""Endpoints of the groups' engines: the protocol by which one is picked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, ModelEntry
from sparkfleet.values import Value

log = logging.getLogger(__name__)

PAUSE_S = 0.05
"""Seconds between two rounds."""


class EngineEndpoint(Value):
    """One group's engine."""

    url: str
    """`http://host:port`, without a path."""
    token: str = ""
    """Internal bearer token, see `keys.engine_token`; empty for an engine that checks none."""
    group: str = ""
    """Name of the group, for the log."""
    app: str = ""
    """Its Serve application, as the table names it."""
    external: ExternalAddress | None = None
    """Its address, if it is outside the fleet."""


class Picker(Protocol):
    """Finds the engine of a group."""

    async def pick(
        self, model: ModelEntry, groups: Sequence[GroupEntry], *, exclude: AbstractSet[str]
    ) -> EngineEndpoint | None:
        """The engine of the first of these groups that has one; None if none has, or none is found in its limit of time.

        Args:
            model: the requested model; its state is `ready`.
            groups: the candidates, best first.
            exclude: URLs that have failed this very request. Must not be returned.
        """
        ...


Find = Callable[[GroupEntry], Awaitable[EngineEndpoint | None]]
"""Looks up the address of a group's engine; None if it has none. May wait, and may fail."""


async def first_found(
    groups: Sequence[GroupEntry], find: Find, *, exclude: AbstractSet[str], limit_s: float
) -> EngineEndpoint | None:
    """The engine of the first group that has one that is not excluded; None if none is found within `limit_s`.

    The lookup learns of a dead engine later than the gateway, so it is repeated until it returns another one. A lookup
    without an answer for one group does not delay those of the others.
    """
    left, each_s = list(groups), limit_s / len(groups) if len(groups) > 1 else None
    try:
        async with asyncio.timeout(limit_s):
            while left:
                for group in tuple(left):
                    try:
                        found = await _within(each_s, find(group))
                    except Exception as error:
                        log.warning("there is no engine of %s: %r", group.name, error)
                        left.remove(group)
                        continue
                    if found is not None and found.url not in exclude:
                        return found
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        pass
    return None


async def _within(limit_s: float | None, found: Awaitable[EngineEndpoint | None]) -> EngineEndpoint | None:
    try:
        if limit_s is None:  # a timeout costs more than all else here
            return await found
        async with asyncio.timeout(limit_s):
            return await found
    except TimeoutError:
        return None
