"""Sends the newest copy of the store to every other node, so that a head that is lost does not take its store with it.

Each node reports the copy that it keeps (`NodeReport.kept_copy`), so nothing has to be remembered here: a node that joins,
joins again, or has lost the file gets the newest one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparkfleet.controlplane.nodes import CopyContent, Nodes
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.controlplane.state.store_copies import StoreCopy
from sparkfleet.controlplane.store_safety.copies import newest_copy
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.units import duration_words, gb

log = logging.getLogger(__name__)

LOOK_S = 1.0
AGAIN_S = 30.0
"""Seconds until a copy that a node did not take is sent again."""
SEEN_S = 10.0
"""Seconds until a node that took a copy reports it: one that does not has lost it."""
LONG_S = 600.0
"""Seconds without the newest copy after which a node that has joined is named."""
LARGEST_BYTES = 64_000_000
"""Largest copy that is sent. Ray's object store has 80 MB: a larger object passes through files in /tmp of both nodes, and
one close to that size waited 4 s for room (Ray 2.60, three nodes on one machine)."""

Listing = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each copy."""


class _Sending(NamedTuple):
    """The last time that a copy was sent to a node."""

    name: str
    boot: str
    """The node's boot: after another one it is sent at once."""
    at: float
    """Steady clock."""
    trouble: str
    """The reason for which the node does not have it; "" if it has."""

    def holds(self, newest: StoreCopy, report: NodeReport, now: float) -> bool:
        """True if its outcome is still what is known of the node, whose report may be older."""
        holds_s = AGAIN_S if self.trouble else SEEN_S
        return (self.name, self.boot) == (newest.name, report.boot) and now - self.at < holds_s


class CopyDistribution:
    """Keeps the newest copy of one store on all other nodes.

    Args:
        paths: of the head, with the store's copies.
        store_id: id of the store: copies of others are not sent.
        reports: of the nodes beside the head.
    """

    def __init__(
        self,
        paths: FleetPaths,
        store_id: Callable[[], str],
        *,
        nodes: Nodes,
        reports: Callable[[], Sequence[NodeReport]],
        steady: Callable[[], float],
    ) -> None:
        self._paths = paths
        self._store_id = store_id
        self._nodes = nodes
        self._reports = reports
        self._steady = steady
        self._listed: tuple[str, Listing] | None = None
        """The store's id and its copies at the last look; None before it."""
        self._newest: StoreCopy | None = None
        self._sent: dict[str, _Sending] = {}
        self._lacks_since: dict[str, float] = {}
        """Time since which each node that has joined has not had what was the newest copy (steady clock)."""

    async def run(self) -> None:
        """Sends until it is cancelled; a failed look is followed by the next."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("copies of the store could not be sent to other nodes")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Sends the newest copy to the nodes that answer, do not have it, and were not sent it in the last seconds."""
        reports = self._reports()
        if not reports:
            return
        await asyncio.to_thread(self._find_newest, self._store_id())
        newest = self._newest
        if newest is not None and newest.bytes <= LARGEST_BYTES:
            due = {one.name: one.boot for one in reports if one.boot and self._is_due(one, newest)}
            if due:
                await self._send(due, newest)
        self._note_lacking(reports)

    def uncopied(self) -> dict[str, str]:
        """Nodes beside the head that are not known to have the newest copy, each with the reason in words."""
        found = ((one.name, self._lack(one)) for one in self._reports())
        return {name: words for name, words in found if words}

    def warnings(self) -> tuple[str, ...]:
        """Nodes that answer and have not had the newest copy for long, each with what that means."""
        now = self._steady()
        return tuple(
            self._warning(one, now - since, words)
            for one in self._reports()
            if one.boot
            and (since := self._lacks_since.get(one.name)) is not None
            and now - since >= LONG_S
            and (words := self._lack(one))
        )

    def _find_newest(self, id_: str) -> None:
        """Looks for it again if any copy has changed. Blocks while copies are read."""
        infos = ((path.name, path.stat()) for path in sorted(self._paths.backups.glob("*.db")))
        try:
            listing: Listing = tuple((name, info.st_size, info.st_mtime_ns) for name, info in infos)
        except FileNotFoundError:  # one was dropped meanwhile
            return
        if (id_, listing) != self._listed:
            self._newest = newest_copy(self._paths, id_)
            self._listed = id_, listing

    def _is_due(self, report: NodeReport, newest: StoreCopy) -> bool:
        if _has(report, newest):
            return False
        last = self._sent.get(report.name)
        return last is None or not last.holds(newest, report, self._steady())

    async def _send(self, due: Mapping[str, str], newest: StoreCopy) -> None:
        copy = await asyncio.to_thread(self._read, newest.name)
        if copy is None:
            return
        answers = await self._nodes.keep_copy(tuple(due), copy)
        for name, boot in due.items():
            self._sent[name] = _Sending(newest.name, boot, self._steady(), answers[name])
            if answers[name]:
                log.warning("the copy %s of the store is not on %s: %s", newest.name, name, answers[name])
            else:
                self._lacks_since.pop(name, None)

    def _read(self, name: str) -> CopyContent | None:
        """Content of a copy; None if it was dropped meanwhile."""
        try:
            content = (self._paths.backups / name).read_bytes()
        except FileNotFoundError:
            return None
        return CopyContent(name, content, hashlib.sha256(content).hexdigest())

    def _note_lacking(self, reports: Sequence[NodeReport]) -> None:
        now = self._steady()
        lacking = {one.name for one in reports if one.joined and self._lack(one)}
        self._lacks_since = {name: self._lacks_since.get(name, now) for name in lacking}

    def _lack(self, report: NodeReport) -> str:
        """The reason for which a node is not known to have the newest copy, in words; "" if it has."""
        newest, last = self._newest, self._sent.get(report.name)
        if newest is None:
            return "" if self._listed is None else "the head has no sound copy of its store"
        if _has(report, newest):
            return ""
        if not report.joined:
            return "it has not joined the fleet"
        if newest.bytes > LARGEST_BYTES:
            return f"the copy has {gb(newest.bytes)}, and at most {gb(LARGEST_BYTES)} are sent"
        if last is not None and last.holds(newest, report, self._steady()):
            return last.trouble
        return "it is about to be sent" if report.boot else "it does not answer"

    def _warning(self, report: NodeReport, lacks_s: float, words: str) -> str:
        kept = report.kept_copy
        minutes = duration_words(lacks_s // 60 * 60)  # readers of the page get every change
        since = f"{report.name} has been without the newest copy of the head's store for {minutes}: {words}."
        if kept is None or self._newest is None:
            means = f"If the head is lost, {report.name} has no deployment and no key to go on with"
        else:
            older = duration_words(max(0.0, self._newest.at - kept.at))
            means = f"If the head is lost, {report.name} has only a copy that is {older} older"
        return f"{since} {means}. `sparkfleet backup --to FILE` brings a copy to your machine."


def _has(report: NodeReport, newest: StoreCopy) -> bool:
    kept = report.kept_copy
    return kept is not None and (kept.name, kept.bytes) == (newest.name, newest.bytes)
