"""Loads one rail between two nodes, and measures its latency: by RDMA if the nodes have the tools, else by TCP.

Both ends are started through channels. Every process ends by itself after a time, and is killed with its process
group if the measurement ends earlier, for any reason.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, NamedTuple, Protocol, TypeVar

from pydantic import Field

from sparkfleet.errors import NodeError
from sparkfleet.fabric.link_measurements import BY_RDMA
from sparkfleet.fabric.perftest import bandwidth_argv, latency_argv, parse_bandwidth, parse_latency
from sparkfleet.hostfacts.fact import failed
from sparkfleet.remote.agent import AgentEvent, Program, ProgramError, call, validated
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.specs.inventory import RailEnd
from sparkfleet.values import Value

T = TypeVar("T")
V = TypeVar("V", bound=Value)

TCP_STREAMS = 4
ROUNDS = 2000
"""Messages of a latency test."""
MOST = 1e18
"""Upper bound of byte counts and times."""
STARTING_S = 20.0
CONNECT_TRIES = 25
CONNECT_PAUSE_S = 0.2
TCP_PROGRAM = Program.of("sparkfleet.fabric.tcp_program", does="measure TCP")


Number = Annotated[float, Field(gt=0, lt=MOST)]


class _Listening(Value):
    port: Annotated[int, Field(gt=0, lt=65536)]


class _Bulk(Value):
    bytes: Number
    seconds: Number


class _Latency(Value):
    latency_us: Number


class RailPair(NamedTuple):
    """One rail between two nodes, the sending end first."""

    channels: tuple[Channel, Channel]
    ends: tuple[RailEnd, RailEnd]
    gids: tuple[int | None, int | None] = (None, None)
    """Index of each end's RoCE v2 GID with its IPv4 address; None leaves the choice to the tool."""

    @property
    def addresses(self) -> tuple[str, str]:
        """The addresses of both ends, without prefix length."""
        return str(self.ends[0].interface.ip), str(self.ends[1].interface.ip)


class Loader(Protocol):
    """A way to load a rail."""

    method: str
    """Its name in results."""

    async def bandwidth(self, rail: RailPair, seconds: float) -> float:
        """GB/s (1e9 bytes) from the first end to the second, over `seconds`. Raises NodeError or FactError."""
        ...

    async def latency(self, rail: RailPair) -> float:
        """One-way latency of a small message, microseconds. Raises NodeError or FactError."""
        ...


class Rdma:
    """`ib_write_bw` and `ib_write_lat` of perftest."""

    method = BY_RDMA

    async def bandwidth(self, rail: RailPair, seconds: float) -> float:
        """See `Loader`."""

        def argv(end: int, port: int, peer: str) -> tuple[str, ...]:
            return bandwidth_argv(_device(rail, end), port, seconds, rail.gids[end], peer)

        return parse_bandwidth(await _meet(rail, argv, seconds))

    async def latency(self, rail: RailPair) -> float:
        """See `Loader`."""

        def argv(end: int, port: int, peer: str) -> tuple[str, ...]:
            return latency_argv(_device(rail, end), port, ROUNDS, rail.gids[end], peer)

        return parse_latency(await _meet(rail, argv, 1.0))


class Tcp:
    """A small Python program. It measures TCP through the kernel, which is slower than RDMA."""

    method = f"TCP ({TCP_STREAMS} streams, Python)"

    async def bandwidth(self, rail: RailPair, seconds: float) -> float:
        """See `Loader`."""
        found = await self._run(rail, "bulk", seconds, _Bulk)
        return found.bytes / found.seconds / 1e9

    async def latency(self, rail: RailPair) -> float:
        """See `Loader`."""
        found = await self._run(rail, "latency", 1.0, _Latency)
        return found.latency_us

    async def _run(self, rail: RailPair, do: str, seconds: float, kind: type[V]) -> V:
        token = secrets.token_hex(32)
        own, peer = rail.addresses
        patience_s = seconds + STARTING_S
        async with _listening(rail.channels[1], peer, token, patience_s) as port:
            there = {"own": own, "peer": peer, "port": port, "netdev": rail.ends[0].netdev}
            size = {"seconds": seconds, "streams": TCP_STREAMS, "rounds": ROUNDS}
            request = {"do": do, "token": token, **there, **size}
            found = await call(rail.channels[0], TCP_PROGRAM, request, timeout_s=patience_s)
        return validated(rail.channels[0].node, found, kind)


async def has_perftest(channel: Channel) -> bool:
    """True if both tools are on a node."""
    try:
        done = await channel.run(("which", "ib_write_bw", "ib_write_lat"), timeout_s=STARTING_S)
    except NodeError:
        return False
    return done.exit_code == 0


# --- TCP --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _listening(channel: Channel, address: str, token: str, seconds: float) -> AsyncIterator[int]:
    """The port of a listener that runs as long as the context, and at most `seconds`."""
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_event(event: AgentEvent) -> None:
        if event["event"] == "listening" and not listening.done():
            listening.set_result(validated(channel.node, {"port": event.get("port")}, _Listening).port)

    request = {"do": "listen", "token": token, "address": address, "seconds": seconds}
    serving: asyncio.Task[object] = asyncio.create_task(
        call(channel, TCP_PROGRAM, request, on_event=on_event, timeout_s=seconds + STARTING_S)
    )
    try:
        ends: set[asyncio.Future[int] | asyncio.Future[object]] = {serving, listening}
        await asyncio.wait(ends, timeout=STARTING_S, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            raise _silent(channel, address, serving)
        yield listening.result()
    finally:
        await _cancel(serving)


def _silent(channel: Channel, address: str, serving: asyncio.Task[object]) -> NodeError:
    error = serving.exception() if serving.done() else None
    if isinstance(error, NodeError) and not isinstance(error, ProgramError):
        return error
    why = f"{error}" if error is not None else f"{channel.node}: no answer"
    return NodeError(
        f"{channel.node}: cannot listen on {address}: {why.removeprefix(f'{channel.node}: ')}",
        do="Check that the rail has this address: sparkfleet fabric plan",
    )


async def _cancel(task: asyncio.Task[T]) -> None:
    """Cancels a task, which ends its command on the node."""
    task.cancel()
    with suppress(asyncio.CancelledError, NodeError):
        await task


# --- RDMA -------------------------------------------------------------------------------------------------------------


def _device(rail: RailPair, end: int) -> str:
    device = rail.ends[end].rdma
    assert device is not None
    return device


async def _meet(rail: RailPair, argv: Callable[[int, int, str], tuple[str, ...]], seconds: float) -> str:
    """Output of the sending end. Retries until the other end listens: perftest does not report when it does."""
    port = 20_000 + secrets.randbelow(10_000)
    patience = seconds + STARTING_S
    server = asyncio.create_task(rail.channels[1].run(argv(1, port, ""), timeout_s=patience))
    try:
        return await _run_until_connected(
            lambda: rail.channels[0].run(argv(0, port, rail.addresses[1]), timeout_s=patience), server
        )
    finally:
        await _cancel(server)


async def _run_until_connected(
    attempt: Callable[[], Awaitable[Completed]], server: asyncio.Task[Completed]
) -> str:
    done = await attempt()
    for _ in range(CONNECT_TRIES):
        if done.exit_code == 0 or server.done():
            break
        await asyncio.sleep(CONNECT_PAUSE_S)
        done = await attempt()
    if done.exit_code != 0:
        other = server.result().stderr if server.done() and server.exception() is None else ""
        raise failed(done.argv, done.exit_code, f"{done.stderr.strip()} {other.strip()}")
    return done.stdout
