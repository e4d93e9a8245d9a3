"""Entries of simulated nodes: those that are to listen do, unless a test gives another report."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.gateway.listening import EntryOrder
from sparkfleet.gateway.report import EntryReport


class SimulatedEntries:
    """Entries in memory only."""

    def __init__(self) -> None:
        self.wanted: Mapping[str, EntryOrder] = {}
        self.reports: dict[str, EntryReport | None] = {}
        """Reports that differ from an entry that works; None: it does not answer."""

    async def keep(self, wanted: Mapping[str, EntryOrder]) -> tuple[EntryReport, ...]:
        """Records its argument."""
        self.wanted = wanted
        found = (self.reports.get(node, EntryReport(node=node, listening=True)) for node in wanted)
        return tuple(one for one in found if one is not None)
