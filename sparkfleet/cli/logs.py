"""`sparkfleet logs`: prints the engine's own log."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from sparkfleet.cli.describe import NameArgument
from sparkfleet.cli.escapes import RawOutput
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments import find
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupReport, RankReport
from sparkfleet.remote.channel import Channel

CHUNK = 1 << 20
FOLLOW_S = 0.3


def logs(  # noqa: PLR0917  # its parameters are the command line's
    name: NameArgument,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as the log grows.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Lines to begin with.")] = 100,
    replica: Annotated[int, typer.Option("--replica", min=0, help="Number of the replica, from 0.")] = 0,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Number of the rank in its group, from 0.")] = 0,
) -> int:
    """Print the log of one rank of a group's engine."""
    return run(_logs(name, open_session(inventory), follow, tail, (replica, rank)))


async def _logs(name: str, session: Session, follow: bool, tail: int, which: tuple[int, int]) -> int:
    async with await session.controller() as client:
        found = _rank(find(await client.fleet(), name).groups, name, *which)
    channel = session.channels[found.node]
    text, offset = await _all(channel, found.log_path, 0)
    lines = text.splitlines(keepends=True)
    output = RawOutput()
    output.write(b"".join(lines[-tail:] if tail else []))
    while follow:
        await asyncio.sleep(FOLLOW_S)
        text, offset = await _all(channel, found.log_path, offset)
        output.write(text)
    return Exit.DONE


async def _all(channel: Channel, path: str, offset: int) -> tuple[bytes, int]:
    """The bytes from `offset` to the end, and the offset of the end. A log that was rotated is read from 0."""
    parts: list[bytes] = []
    while part := await channel.read(path, offset=offset, limit=CHUNK):
        parts.append(part)
        offset += len(part)
    if not parts and offset and not await channel.read(path, offset=offset - 1, limit=1):
        return await _all(channel, path, 0)
    return b"".join(parts), offset


def _rank(groups: tuple[GroupReport, ...], name: str, replica: int, rank: int) -> RankReport:
    """That rank of the newest generation's group."""
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
