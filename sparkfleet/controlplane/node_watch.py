"""Reads the state of the nodes every few seconds, and records which have joined or left the fleet or rebooted, and their
troubles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from sparkfleet.controlplane.nodes import Nodes
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.status import NodeReport

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two readings of the nodes."""
SILENT_S = 6.0
"""Seconds without an answer after which a node that Ray counts as joined is named: its actor starts in less."""
LONGEST_S = 60.0
"""Time limit of a reading: Ray's own calls have none."""

OVERDUE_S = 10.0
"""Seconds without a reading after which that is named: one with a silent node takes 5 s, and the next begins 2 s later."""

See = Callable[[tuple[NodeReport, ...], float], None]


class NodeWatch:
    """Latest state of the nodes.

    Args:
        see: receives each reading and the time at which it began (monotonic clock).
        drained: nodes that are drained now.
    """

    def __init__(
        self,
        nodes: Nodes,
        see: See,
        event_log: EventLog,
        steady: Callable[[], float],
        drained: Callable[[], Collection[str]],
    ) -> None:
        self._nodes = nodes
        self._see = see
        self._event_log = event_log
        self._steady = steady
        self._drained = drained
        self.reports: tuple[NodeReport, ...] = ()
        self._read_at = steady()
        """End of the last reading (steady clock)."""
        self._answered: dict[str, float] = {}
        """Time at which each node that has joined was last known to answer (steady clock)."""
        self._last: dict[str, NodeReport] = {}
        """The latest report of each node that has readings: what it was like before it went off."""

    def lost(self) -> dict[str, float]:
        """Nodes that have left the fleet, or that Ray counts as joined and that do not answer; seconds since their last
        answer, 0 if they have never joined this controller."""
        now = self._steady()
        return {
            node.name: now - self._answered.get(node.name, now)
            for node in self.reports
            if not node.joined
            or (node.memory_available is None and now - self._answered.get(node.name, now) > SILENT_S)
        }

    def overdue(self) -> tuple[str, ...]:
        """Trouble of a fleet whose nodes have not been read for long, in words: Ray's calls wait for its GCS."""
        since = self._steady() - self._read_at
        if since < OVERDUE_S:
            return ()
        return (
            f"The nodes have not been read for {since // 10 * 10:.0f} s: Ray's GCS on the head does not answer."
            " What serves goes on; nothing is started or moved until it answers.",
        )

    def troubles(self) -> tuple[str, ...]:
        """Things that nodes cannot use, and their rails that are down, each with its node and what puts it right."""
        return tuple(f"{node.name}: {words}" for node in self.reports for words in node.troubles)

    async def run(self) -> None:
        """Reads until it is cancelled; a failed reading is followed by the next."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the state of the nodes could not be read")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Reads once, and records which nodes have joined, left or rebooted since."""
        began = self._steady()
        async with asyncio.timeout(LONGEST_S):
            nodes = await self._nodes.look()
        before, troubled = {node.name: node.joined for node in self.reports}, self.troubles()
        self._see(nodes, began)
        for node in nodes:
            comes = node.joined and not before.get(node.name, False)  # its actor may have just begun
            if node.memory_available is not None or comes:
                self._answered[node.name] = began
        self.reports, self._read_at = nodes, self._steady()
        lost = self.lost()
        drained = self._drained()
        self.reports = tuple(
            node.beside(lost, drained).model_copy(
                update={"silent_s": lost.get(node.name) if node.joined else None}
            )
            for node in nodes
        )
        for node in self.reports:
            if node.joined != before.get(node.name, False):
                words = "joined the fleet" if node.joined else "left the fleet: Ray on it does not answer"
                await self._event_log.record("", 0, node.name, "node", f"{node.name} {words}")
            if node.boot:
                last = self._last.get(node.name)
                known = last.heat_and_memory if last is not None else ""
                await self._event_log.record_boot(node.name, node.boot, node.up_s, known)
            if node.readings is not None:
                self._last[node.name] = node
            for words in node.troubles:
                if f"{node.name}: {words}" not in troubled:
                    await self._event_log.record("", 0, node.name, "node", words)
