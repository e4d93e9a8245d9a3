"""Runs the same work on many nodes concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from sparkfleet.errors import SparkfleetError
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.unreachable import Suspected

T = TypeVar("T")


async def fan_out(
    channels: Mapping[str, Channel],
    work: Callable[[Channel], Awaitable[T]],
    *,
    limit: int = 32,
    timeout_s: float = 60.0,
) -> dict[str, T | SparkfleetError]:
    """Result of `work` for each node, or the error that it raised, in the order of `channels`.

    A node that does not answer takes its own `timeout_s` (from the beginning of its work), and one of `limit` places.
    A cancellation ends the work on all nodes; so does an exception that is not a `SparkfleetError`, which is a bug and is
    raised.

    Args:
        limit: concurrent nodes.
        timeout_s: seconds for each node.
    """
    places = asyncio.Semaphore(limit)

    async def one(channel: Channel) -> T | SparkfleetError:
        async with places:
            return await _attempt(channel, work, timeout_s)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(one(channel)) for name, channel in channels.items()}
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {name: task.result() for name, task in tasks.items()}


async def _attempt(
    channel: Channel, work: Callable[[Channel], Awaitable[T]], timeout_s: float
) -> T | SparkfleetError:
    patience = asyncio.timeout(timeout_s)
    try:
        async with patience:
            return await work(channel)
    except SparkfleetError as error:
        return error
    except TimeoutError:
        if not patience.expired():  # the work's own
            raise
        return Suspected(
            f"{channel.node}: not done within {timeout_s:g} s",
            means="The node may be down or busy. The other nodes were not delayed.",
            do="Try again.",
        )
