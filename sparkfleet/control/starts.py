"""Starts that have neither succeeded nor failed yet: on the disk, so that one that takes its node down is counted, too.

A Spark that runs out of memory does not end the start: it wedges and has to be switched off. Whatever would have said that
the start failed is gone with it, and whoever comes back would do the same again, after each power cycle. So what is being
started is written down before, with the boots of the nodes that it lies on. A node that is there in another boot, while the
start has not ended, was taken down by it, or was switched off meanwhile: both count as a start that failed.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from sparkfleet.control.order import GroupOrder
from sparkfleet.control.status import NodeReport
from sparkfleet.control.store import GroupKey, Store
from sparkfleet.engines.signatures import Cause, Diagnosis

ASK_S = 60.0
"""After a restart of the controller: how long nodes are asked which boot it is. An actor on each has to start for that."""


class Starts:
    """What is being started, and whether its nodes are still the ones that it began on.

    Args:
        store: keeps it.
        here: the node that this runs on, which need not be asked.
    """

    def __init__(self, store: Store, here: NodeReport) -> None:
        self._store = store
        self._asked: float | None = None
        """When it was first asked whether a group may be started. Serve may take a minute to come up before that."""
        self._here = {here.name: here.boot}
        self._boots = self._here
        """Of each node that is part of the fleet its boot, "" where it has not said."""
        self._looked = False
        """Whether it is known which other nodes are part of the fleet."""

    def see(self, nodes: Collection[NodeReport]) -> None:
        """The nodes as they are now."""
        self._looked = True
        self._boots = {node.name: node.boot for node in nodes if node.joined} | self._here
        for group, begun in self._store.starts().items():
            told = {
                node: self._boots[node] for node, boot in begun.items() if not boot and self._boots.get(node)
            }
            if told:
                self._store.begin_start(group, told)

    def begin(self, order: GroupOrder) -> None:
        """A group is about to be started. One whose start has not ended goes on: its nodes are kept as they were then."""
        boots = {seat.node: self._boots.get(seat.node, "") for seat in order.seats}
        self._store.begin_start(_key(order), boots)

    def begin_anew(self, order: GroupOrder) -> None:
        """A group is about to be started; whatever became of the start before it is known."""
        self.end(_key(order))
        self.begin(order)

    def end(self, group: GroupKey) -> None:
        """It is ready, has failed, or is no longer started."""
        self._store.end_start(group)

    def lost(self) -> dict[GroupKey, Diagnosis]:
        """Starts that have not ended and whose nodes were switched off or restarted since; with what that means."""
        found = {
            group: sorted(
                node for node, boot in begun.items() if boot and self._boots.get(node, "") not in ("", boot)
            )
            for group, begun in self._store.starts().items()
        }
        return {group: _went_down(nodes) for group, nodes in found.items() if nodes}

    def is_uncertain(self, group: GroupKey) -> bool:
        """Whether a node has yet to say if an unfinished start of this group took it down."""
        begun = self._store.starts().get(group, {})
        if not begun:
            return False
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
        if now - self._asked >= ASK_S:
            return False
        silent = [node for node, boot in begun.items() if boot and not self._boots.get(node)]
        return any(node in self._boots or not self._looked for node in silent)


def _key(order: GroupOrder) -> GroupKey:
    return order.deployment, order.generation, order.replica


def _went_down(nodes: list[str]) -> Diagnosis:
    says = f"{' and '.join(nodes)} went down while it was starting, as a Spark does that runs out of memory."
    return Diagnosis(cause=Cause.TRANSIENT, says=says)
