"""Starts that have not ended yet, or failed and were not answered: on the disk, so that one that takes its node down counts.

A Spark that runs out of memory does not end the start: it wedges and has to be switched off. Whatever would have said that
the start failed is gone with it, and whoever comes back would do the same again, after each power cycle. So what is being
started is written down before, with the boots of the nodes that it lies on. A node that is there in another boot, while the
start has not ended, was taken down by it, or was switched off meanwhile: both count as a start that failed.

Where another node than rank 0's goes, the group itself says that it failed, before anybody knows why. So its nodes are asked
once more before that is answered.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from sparkfleet.control.order import GroupOrder
from sparkfleet.control.status import NodeReport
from sparkfleet.control.store import GroupKey, Store
from sparkfleet.engines.signatures import Diagnosis
from sparkfleet.errors import Cause

ASK_S = 60.0
"""After a restart of the controller: how long nodes are asked which boot it is. An actor on each has to start for that."""

SILENT_S = 60.0
"""After a start has failed: how long a node that does not answer is waited for. Ray calls one that lost its power gone after
55 s: five checks, each of which waits for ten."""


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
        self._looked: float | None = None
        """When the nodes were begun to be looked at last; None: it is not known which others are part of the fleet."""
        self._failed: dict[GroupKey, float] = {}
        """Starts that have failed and were not answered yet; since when that is known."""

    def see(self, nodes: Collection[NodeReport], began: float) -> None:
        """The nodes as they are now; `began` is when they were begun to be asked, of the monotonic clock."""
        self._looked = began
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
        self._failed.pop(_key(order), None)
        self._store.begin_start(_key(order), boots)

    def begin_anew(self, order: GroupOrder) -> None:
        """A group is about to be started; whatever became of the start before it is known."""
        self.end(_key(order))
        self.begin(order)

    def end(self, group: GroupKey) -> None:
        """It is ready, its failure is answered, or it is no longer started."""
        self._failed.pop(group, None)
        self._store.end_start(group)

    def fail(self, group: GroupKey) -> None:
        """It has failed, and that is yet to be answered."""
        self._failed.setdefault(group, time.monotonic())

    def has_failed(self, group: GroupKey) -> bool:
        """Whether it has failed and that is yet to be answered."""
        return group in self._failed

    def away(self, order: GroupOrder) -> tuple[str, ...] | None:
        """Nodes of a start that failed which are away, or went down since it began; None as long as that is not known.

        Whoever answers a look that began after the failure, in the boot that the start began in, is there. A node that
        answers nothing is away when its time is over.
        """
        group = _key(order)
        self.fail(group)
        others = {seat.node for seat in order.seats} - self._here.keys()
        if not others:
            return ()
        if self._looked is None:
            return None
        found = {*self._restarted(self._store.starts().get(group, {})), *(others - self._boots.keys())}
        if found or self._looked < self._failed[group]:
            return tuple(sorted(found)) or None
        silent = tuple(sorted(node for node in others if not self._boots[node]))
        return None if silent and time.monotonic() - self._failed[group] < SILENT_S else silent

    def lost(self) -> dict[GroupKey, Diagnosis]:
        """Starts that have not ended and whose nodes were switched off or restarted since; with what that means."""
        found = {group: self._restarted(begun) for group, begun in self._store.starts().items()}
        return {group: went_away(nodes) for group, nodes in found.items() if nodes}

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
        return any(node in self._boots or self._looked is None for node in silent)

    def _restarted(self, begun: Mapping[str, str]) -> tuple[str, ...]:
        """Nodes that are there in another boot than the one in which a start began."""
        boots = {node: self._boots.get(node, "") for node in begun}
        return tuple(sorted(node for node, boot in begun.items() if boot and boots[node] not in ("", boot)))


def _key(order: GroupOrder) -> GroupKey:
    return order.deployment, order.generation, order.replica


def went_away(nodes: Sequence[str]) -> Diagnosis:
    """Why a start failed whose nodes went away meanwhile."""
    says = f"{' and '.join(nodes)} went away while it was starting: switched off, cut off, or out of memory."
    return Diagnosis(cause=Cause.AWAY, says=says)
