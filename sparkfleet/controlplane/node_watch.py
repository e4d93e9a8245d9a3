"""Looks at the nodes again and again, and says who has joined the fleet and who has left it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.nodes import Nodes
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.telemetry.metrics import ControlMetrics

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the nodes are looked at."""
LONGEST_S = 60.0
"""A look that takes longer is given up for the next: Ray's own questions have no limit."""

See = Callable[[tuple[NodeReport, ...], float], None]


class NodeWatch:
    """Latest state of the nodes.

    Args:
        nodes: the machines.
        see: takes what was seen, and when the look began (monotonic clock).
        metrics: show it.
        journal: where who comes and goes is written.
        steady: a clock that only goes forward, seconds.
    """

    def __init__(
        self,
        nodes: Nodes,
        see: See,
        metrics: ControlMetrics,
        journal: EventLog,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._see = see
        self._metrics = metrics
        self._journal = journal
        self._steady = steady
        self.reports: tuple[NodeReport, ...] = ()

    async def run(self) -> None:
        """Look until cancelled; a look that fails is followed by the next."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the nodes could not be looked at")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once: keep what is seen, and say who has joined or left since."""
        began = self._steady()
        async with asyncio.timeout(LONGEST_S):
            nodes = await self._nodes.look()
        before = {node.name: node.joined for node in self.reports}
        self._see(nodes, began)
        self.reports = nodes
        for node in nodes:
            self._metrics.joined.labels(node.name).set(node.joined)
            if node.memory_available is not None:
                self._metrics.memory.labels(node.name).set(node.memory_available)
        for node in nodes:
            if node.joined != before.get(node.name, False):
                words = "joined the fleet" if node.joined else "left the fleet: Ray on it does not answer"
                await self._journal.record("", 0, node.name, "node", f"{node.name} {words}")
