"""Reads the log of one rank of a group, on the rank's node."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from typing import NamedTuple

from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.newest_rank import newest_rank
from sparkfleet.errors import ControlError, NodeError, SparkfleetError
from sparkfleet.fleet.deployments.status import find_now, no_deployment
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.nodes.surroundings import SHOWING_S, surroundings_of
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.without_controller import client_or_trouble
from sparkfleet.group.group_name import GroupKey, name_of
from sparkfleet.group.report import GroupReport
from sparkfleet.remote.channel import Channel
from sparkfleet.runtime.files import state_probe
from sparkfleet.runtime.files.ranklog import FILES

CHUNK = 1 << 20
MARK_BYTES = 64
"""Bytes by which the older file of a log that was rotated is recognised."""
FOLLOW_S = 0.3
"""Seconds between two reads of a log that is followed."""
LOOK_S = 2.0
"""Seconds between two looks for a newer group than the one whose log is followed."""


class LoggedRank(NamedTuple):
    """The rank whose log is read."""

    deployment: str
    generation: int | None = None
    """None: the newest."""
    replica: int | None = None
    """None: the first that is there."""
    rank: int = 0

    @property
    def group(self) -> GroupKey | None:
        """The group; None if that is left open."""
        if self.generation is None or self.replica is None:
            return None
        return self.deployment, self.generation, self.replica


async def rank_log(
    session: Session, logged: LoggedRank, *, tail: int = 100, follow: bool = False
) -> AsyncIterator[bytes]:
    """The log of a rank in pieces: the last `tail` lines, then new bytes if `follow`.

    A log that is followed ends with its deployment, or its group if that is named. If the group is left open, the log of a
    newer one follows, all of it; that is an event of the session.

    If no controller answers, or the deployment or a group that is named has ended, the log is found by its name on the
    nodes, and that is an event of the session.

    Raises:
        ControlError: there is no such deployment, or the rank has no log.
        UnreachableError, UnreadableStateError, WrongFleetError: no node has such a log, and the deployments are not known.
        NodeError: the node or its log cannot be read.
    """
    client, trouble = await client_or_trouble(session)
    if client is None:
        found = await _stored_log(session, trouble, logged)
    else:
        found = await _present_log(session, client, logged)
    while True:
        newer = None
        pieces = read_log(session.channels[found.node], found.path, tail=tail, follow=follow)
        looked = time.monotonic()
        async for piece in pieces:
            yield piece
            if not follow or client is None or time.monotonic() - looked < LOOK_S:
                continue
            newer, looked = await _log_now(client, logged, found), time.monotonic()
            if newer != found:
                yield await anext(pieces)  # what was written before it ended
                break
        await pieces.aclose()
        if newer is None:
            return
        name = name_of((logged.deployment, newer.generation, newer.replica))
        session.report(TroubleFound(line=f"{logged.deployment} was restarted: the log of {name} follows."))
        found, tail = newer, sys.maxsize


async def _log_now(client: FleetClient, logged: LoggedRank, found: StoredLog) -> StoredLog | None:
    """The log to follow now: the present one as long as no other is there; None once nothing writes to it again."""
    try:
        async with client.again() as asking:
            one = (await asking.fleet()).named(logged.deployment)
    except SparkfleetError:
        return found  # it does not answer
    if one is None:
        return None
    try:
        return _log_of(
            one.groups, logged._replace(replica=found.replica)
        )  # another replica is not its successor
    except ControlError:
        return None if logged.group else found


def _log_of(groups: tuple[GroupReport, ...], logged: LoggedRank) -> StoredLog:
    """The log of a rank of these groups. Raises ControlError if there is none."""
    rank = newest_rank(groups, logged.deployment, logged.replica, logged.rank, logged.generation)
    group = next(one for one in groups if rank in one.ranks)
    return StoredLog(rank.node, rank.log_path, group.replica, group.generation)


class StoredLog(NamedTuple):
    """A log file on a node, and its place among those of the same rank."""

    node: str
    path: str
    replica: int = 0
    generation: int = 0
    written: float = 0.0
    """Unix seconds."""


async def _present_log(session: Session, client: FleetClient, logged: LoggedRank) -> StoredLog:
    """The log of a rank of what is deployed; else, of a group by its name or of a deployment that was deleted, what is
    stored."""
    name = logged.deployment
    async with client:
        try:
            groups = (await find_now(client, name)).groups
            return _log_of(groups, logged)
        except ControlError as error:
            if logged.generation is None and (await client.fleet()).named(name):
                raise  # it has no log yet: that of an earlier generation would be taken for it
            missing = error
    ended = ControlError(f"{name_of(logged.group)} has ended.") if logged.group else missing
    try:
        return await _stored_log(session, ended, logged)
    except ControlError:
        raise missing from None


async def _stored_log(session: Session, trouble: SparkfleetError, logged: LoggedRank) -> StoredLog:
    """The log of a rank on any node that can be reached; of generations that are left open, of the newest."""
    name, _, replica, rank = logged
    nodes = tuple(session.inventory.nodes)
    answers = await asyncio.gather(
        *(session.access.probe(node, state_probe.logs) for node in nodes), return_exceptions=True
    )
    found: list[StoredLog] = []
    names: set[str] = set()
    unread: list[str] = []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, dict):
            found += _logs_of(node, answer, logged)
            names.update(_names_of(answer))
        elif isinstance(answer, NodeError):
            unread.append(answer.what)
        else:
            raise answer
    last = max(found, key=lambda log: (log.generation, -log.replica, log.written), default=None)
    shown = name_of((name, last.generation, last.replica)) if last else ""
    for line in (*(f"{trouble.what} The log of {shown} is shown." for _ in found[:1]), *unread):
        session.report(TroubleFound(line=line))
    if last is None:
        if name not in names:
            await _require_stored(session, trouble, name, names)
        raise ControlError(
            f"{name} has no log of rank {rank}{'' if replica is None else f' of replica {replica}'} on"
            f" {', '.join(nodes)}.",
            means=trouble.what,
            do=trouble.do,
        )
    return last


async def _require_stored(session: Session, trouble: SparkfleetError, name: str, logged: set[str]) -> None:
    """Raises ControlError if the head's store has no such deployment, and the trouble if its store cannot be read."""
    head = session.inventory.head
    around = await surroundings_of(session.inventory, {head: session.channels[head]}, SHOWING_S)
    stored = around[head].generations if head in around else None
    if stored is None:
        raise trouble
    if name not in stored:
        raise no_deployment(name, sorted(logged.union(stored)))


def _names_of(answer: dict[str, object]) -> Iterator[str]:
    """Names of the deployments of which a node has logs."""
    form = re.compile(re.escape(f"{answer['label']}_") + r"(.+)_g[0-9]+_[0-9]+_[0-9]+\.log")
    logs = answer["logs"]
    for file, _ in logs if isinstance(logs, list) else ():
        if match := form.fullmatch(file):
            yield match[1]


def _logs_of(node: str, answer: dict[str, object], logged: LoggedRank) -> Iterable[StoredLog]:
    """The logs of a rank among those of a node, as `state_probe.logs` returns them."""
    name, generation, replica, rank = logged
    form = re.compile(re.escape(f"{answer['label']}_{name}") + rf"_g([0-9]+)_([0-9]+)_{rank}\.log")
    logs = answer["logs"]
    for file, written in logs if isinstance(logs, list) else ():
        if match := form.fullmatch(file):
            one = StoredLog(node, f"{answer['directory']}/{file}", int(match[2]), int(match[1]), written)
            if generation in (None, one.generation) and replica in (None, one.replica):
                yield one


async def read_log(channel: Channel, path: str, *, tail: int, follow: bool) -> AsyncGenerator[bytes]:
    """The last `tail` lines of a log on a node, also those of its older files, then new bytes if `follow`, without end."""
    text, offset = await _from(channel, path, 0)
    mark = text[-MARK_BYTES:]
    for older in (f"{path}.{i}" for i in range(1, FILES)):
        if len(text.splitlines()) >= tail or not await _exists(channel, older):
            break
        text = (await _from(channel, older, 0))[0] + text
    yield b"".join(text.splitlines(keepends=True)[-tail:] if tail else [])
    while follow:
        await asyncio.sleep(FOLLOW_S)
        text, offset, mark = await _since(channel, path, offset, mark)
        yield text


async def _since(channel: Channel, path: str, offset: int, mark: bytes) -> tuple[bytes, int, bytes]:
    """The bytes from `offset` on, the offset of the end and the last bytes before it.

    `mark`: the last bytes before `offset`. The rest of a log that was rotated is in its older file, if that has them there.
    """
    text, end = await _from(channel, path, offset)
    if text or not offset or await channel.read(path, offset=offset - 1, limit=1):
        return text, end, (mark + text)[-MARK_BYTES:]
    older, rest = f"{path}.1", b""
    if await _exists(channel, older):
        found = await channel.read(older, offset=offset - len(mark), limit=len(mark))
        rest = (await _from(channel, older, offset))[0] if found == mark else b""
    text, end = await _from(channel, path, 0)
    return rest + text, end, text[-MARK_BYTES:]


async def _exists(channel: Channel, path: str) -> bool:
    """Raises NodeError if the node does not answer, which `read` raises for a file that is not there, too."""
    return (await channel.run(("test", "-f", path))).exit_code == 0


async def _from(channel: Channel, path: str, offset: int) -> tuple[bytes, int]:
    """The bytes of a file from `offset` to the end, and the offset of the end."""
    parts: list[bytes] = []
    while part := await channel.read(path, offset=offset, limit=CHUNK):
        parts.append(part)
        offset += len(part)
    return b"".join(parts), offset
