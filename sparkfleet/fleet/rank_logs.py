"""Reads the log of one rank of a group, on the rank's node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments import find
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupReport, RankReport
from sparkfleet.remote.channel import Channel

CHUNK = 1 << 20
FOLLOW_S = 0.3
"""Seconds between two reads of a log that is followed."""


async def rank_log(
    session: Session, name: str, *, replica: int = 0, rank: int = 0, tail: int = 100, follow: bool = False
) -> AsyncIterator[bytes]:
    """The log of a rank of the newest generation, in pieces: the last `tail` lines, then new bytes if `follow`.

    Raises:
        ControlError: the deployment or the rank has no log.
        NodeError: the node or its log cannot be read.
    """
    async with await session.controller() as client:
        found = newest_rank(find(await client.fleet(), name).groups, name, replica, rank)
    async for piece in read_log(session.channels[found.node], found.log_path, tail=tail, follow=follow):
        yield piece


async def read_log(channel: Channel, path: str, *, tail: int, follow: bool) -> AsyncIterator[bytes]:
    """The last `tail` lines of a file on a node, then new bytes if `follow`, without end."""
    text, offset = await _all(channel, path, 0)
    lines = text.splitlines(keepends=True)
    yield b"".join(lines[-tail:] if tail else [])
    while follow:
        await asyncio.sleep(FOLLOW_S)
        text, offset = await _all(channel, path, offset)
        yield text


def newest_rank(groups: tuple[GroupReport, ...], name: str, replica: int, rank: int) -> RankReport:
    """That rank of the newest generation's group with a log. Raises ControlError if there is none."""
    found = [
        (group.generation, one)
        for group in groups
        if group.replica == replica
        for one in group.ranks
        if one.rank == rank and one.log_path
    ]
    if not found:
        raise ControlError(
            f"{name} has no log yet for rank {rank} of replica {replica}.",
            do=f"`sparkfleet describe {name}` shows its groups and ranks.",
        )
    return max(found, key=lambda pair: pair[0])[1]


async def _all(channel: Channel, path: str, offset: int) -> tuple[bytes, int]:
    """The bytes from `offset` to the end, and the offset of the end. A log that was rotated is read from 0."""
    parts: list[bytes] = []
    while part := await channel.read(path, offset=offset, limit=CHUNK):
        parts.append(part)
        offset += len(part)
    if not parts and offset and not await channel.read(path, offset=offset - 1, limit=1):
        return await _all(channel, path, 0)
    return b"".join(parts), offset
