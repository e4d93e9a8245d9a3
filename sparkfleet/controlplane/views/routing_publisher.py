"""The routing table of the gateways: published when it changes, and returned to gateways that wait for a new one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection

from sparkfleet.controlplane.state.fleet_snapshot import FleetSnapshot
from sparkfleet.controlplane.state.report_cache import STALE_S
from sparkfleet.gateway.listening import GatewayListening
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, RoutingTable
from sparkfleet.group.group_name import GroupKey

SETTLE_S = STALE_S
"""Seconds after a restart of the controller for which the gateways keep their old table while groups report again: a group
that is silent for longer does not count as ready without a restart either."""
UNREPORTED_GATEWAY_S = 10.0
"""Seconds after a start of the controller in which there may be gateways that it does not know: they ask for a table within
a second, and report every five."""
UNREPORTED_GATEWAY = "the gateway"
"""Name of the gateways that have neither asked nor reported since the controller started."""


class RoutingPublisher:
    """Holds the last published table."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._table = RoutingTable(version=0, models={}, keys=())
        self._published = asyncio.Condition()
        self._held: dict[str, int] = {}
        """Version of the table that each gateway replica had when it asked last."""
        self._began = self._steady()

    @property
    def version(self) -> int:
        """Version of the last published table; 0: there is none."""
        return self._table.version

    def published(self) -> dict[str, GroupEntry]:
        """Table last sent to the gateways, by application."""
        return {group.app: group for entry in self._table.models.values() for group in entry.groups}

    async def publish(
        self,
        view: FleetSnapshot,
        keys: tuple[KeyEntry, ...],
        without: GroupKey | None = None,
        listening: GatewayListening | None = None,
    ) -> bool:
        """Publishes the current table without the group `without`, if it has changed.

        Returns False while the gateways keep their old table, because groups have not reported since a restart.
        """
        models, now = view.models(without), self._table
        same = now.version > 0 and (models, keys, listening) == (now.models, now.keys, now.listening)
        is_first = now.version == 0  # afterwards a group that has not reported is one that starts
        settling = is_first and not view.all_reported() and self._steady() - self._began < SETTLE_S
        if same or settling:
            return not settling
        # Not counted from 1: a gateway must never mistake the table of a restarted controller for one it has.
        self._table = RoutingTable(
            version=max(self._table.version + 1, time.time_ns()),
            models=models,
            keys=keys,
            listening=listening,
        )
        async with self._published:
            self._published.notify_all()
        return True

    async def held_by(self, replicas: Callable[[], Collection[str]], wait_s: float) -> frozenset[str]:
        """Waits until every gateway replica holds the current table, at most `wait_s`. Returns those that do not.

        Right after the controller's start the replicas that have asked for a table count, too, and one is waited for.

        Args:
            replicas: the replicas that serve now; they may change meanwhile.
        """
        version = self._table.version

        def late() -> frozenset[str]:
            # Before the first table the gateways have one of the controller before, which the first one replaces.
            current = version or self._table.version
            there = set(replicas())
            if self._steady() - self._began < UNREPORTED_GATEWAY_S:
                there |= self._held.keys()
                there = there or {UNREPORTED_GATEWAY}
            return frozenset(one for one in there if not current or self._held.get(one, 0) < current)

        async with self._published:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._published.wait_for(lambda: not late())
        return late()

    async def table(self, known: int, wait_s: float, replica: str = "") -> RoutingTable:
        """The table; waits for one other than `known`, at most `wait_s`. Version 0: none was published yet.

        Args:
            known: version of the table that the caller has.
            replica: the gateway replica that asks, "" for others.
        """
        if not replica and self._table.version not in (known, 0):
            return self._table
        async with self._published:
            if replica:
                # A higher version is of a controller before, and of a clock that was set back since.
                self._held[replica] = known if known <= self._table.version else 0
                self._published.notify_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._published.wait_for(lambda: self._table.version not in (known, 0))
        return self._table
