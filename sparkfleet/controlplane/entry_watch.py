"""Watch over the entries: the nodes beside the head at whose addresses the endpoint is reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.gateway.listening import EntryOrder
from sparkfleet.gateway.report import EntryReport

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two looks."""
LONGEST_S = 60.0
"""Time limit of a look: Ray's own calls have none."""
AWAY_S = 6.0
"""Seconds without a good report after which an entry is named: a killed one, and a killed gateway, are back in less."""


class Entries(Protocol):
    """Access to the entries of a fleet. `ray/entry_actor.py` has the one over Ray."""

    async def keep(self, wanted: Mapping[str, EntryOrder]) -> tuple[EntryReport, ...]:
        """Lets the entries be as wanted, by node, and ends all others. The reports of those that answer."""
        ...


class EntryWatch:
    """Keeps the entries as the head's address has them, and knows their state."""

    def __init__(
        self,
        entries: Entries,
        address: Callable[[], HeadAddress],
        event_log: EventLog,
        steady: Callable[[], float],
    ) -> None:
        self._entries = entries
        self._address = address
        self._event_log = event_log
        self._steady = steady
        self._found: dict[str, EntryReport] = {}
        self._good_at: dict[str, float] = {}
        """Time at which each entry was last known to work, or began to be wanted (steady clock)."""

    def reports(self) -> tuple[EntryReport, ...]:
        """One for each entry that is wanted."""
        address = self._address()
        return tuple(
            self._found.get(one.node, EntryReport(node=one.node)).model_copy(
                update={"url": address.endpoint_at(one)}
            )
            for one in address.entries
        )

    def warnings(self) -> tuple[str, ...]:
        """Entries whose clients do not reach the gateway, each with what puts it right."""
        now = self._steady()
        return tuple(
            f"Clients do not reach {one.url}: {one.trouble or f'the entry does not answer; is {one.node} up?'} Use another"
            f" address of the endpoint meanwhile, or take {one.node} out of `gateway: {{nodes: …}}`."
            for one in self.reports()
            if not one.reached and now - self._good_at.get(one.node, now) >= AWAY_S
        )

    async def run(self) -> None:
        """Looks until it is cancelled; a failed look is followed by the next."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the entries could not be kept")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Looks once, lets every entry be as it is wanted, and records changes of their state."""
        address, now = self._address(), self._steady()
        orders = {
            one.node: EntryOrder(
                host=one.host,
                port=address.gateway_port,
                target=one.target,
                target_port=address.gateway_port,
                tls=address.tls is not None,
            )
            for one in address.entries
        }
        self._good_at = {node: self._good_at.get(node, now) for node in orders}
        found: tuple[EntryReport, ...] = ()
        try:
            async with asyncio.timeout(LONGEST_S):
                found = await self._entries.keep(orders)
        finally:
            before, self._found = self._found, {one.node: one for one in found}
        for one in found:
            if one.reached:
                self._good_at[one.node] = self._steady()
            await self._record(one, before.get(one.node, EntryReport(node=one.node)))

    async def _record(self, one: EntryReport, before: EntryReport) -> None:
        if (one.listening, one.trouble, one.after) == (before.listening, before.trouble, before.after):
            return
        words = f"entry listening on {one.node}" if one.listening else f"no entry on {one.node}"
        words += f": {one.trouble}" if one.trouble else ""
        words += f"; the one before: {one.after}" if one.after else ""
        await self._event_log.record("", 0, one.node, "gateway", words)
