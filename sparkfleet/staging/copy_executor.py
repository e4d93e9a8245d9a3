"""Runs the copies of a plan: each source serves its target for the duration of the copy only."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from sparkfleet.errors import NodeError
from sparkfleet.staging.agent.rsync_fetch import FetchRequest, From
from sparkfleet.staging.agent.rsync_serve import Listen, ServeRequest, Serving
from sparkfleet.staging.agent.transfer import Arrived
from sparkfleet.staging.agent_client import Line, validated
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.manifest import Manifest
from sparkfleet.staging.plan import Copy

SERVE_LIMIT_S = 6 * 3600.0
"""Time limit of a sender that is never stopped, for a channel that hangs."""
STOP_S = 10.0


async def run_copies(
    staging: StagingNodes, manifest: Manifest, revision: str, copies: Iterable[Copy]
) -> tuple[dict[str, Arrived], list[NodeError]]:
    """Run copies, each as soon as its source is complete; returns results by target, and errors.

    A copy is skipped if its source's own copy failed; the next plan finds another source.
    """
    planned = tuple(copies)
    runs: dict[str, asyncio.Task[Arrived | None]] = {}
    lines: dict[tuple[str, int], asyncio.Lock] = {}
    arrived: dict[str, Arrived] = {}
    failed: list[NodeError] = []

    async def one(copy: Copy) -> Arrived | None:
        if copy.source in runs and await runs[copy.source] is None:
            return None
        locks = [
            lines.setdefault((copy.source, cable), asyncio.Lock()) for cable in copy.route.cables or (-1,)
        ]
        try:
            async with _hold_all(locks):
                arrived[copy.target] = await _copy(staging, manifest, revision, copy)
        except NodeError as error:
            failed.append(error)
        return arrived.get(copy.target)

    async with asyncio.TaskGroup() as group:
        for copy in planned:  # in the order of rounds: a source's own copy precedes the copies from it
            runs[copy.target] = group.create_task(one(copy))
    return arrived, failed


@asynccontextmanager
async def _hold_all(locks: list[asyncio.Lock]) -> AsyncIterator[None]:
    """Hold several locks, taken in one order everywhere: a route lists its cables sorted."""
    held: list[asyncio.Lock] = []
    try:
        for lock in locks:
            await lock.acquire()
            held.append(lock)
        yield
    finally:
        for lock in held:
            lock.release()


async def _copy(staging: StagingNodes, manifest: Manifest, revision: str, copy: Copy) -> Arrived:
    if copy.route.over == "lan":
        text = f"{copy.source} and {copy.target} are not linked: copying over the LAN, which is slower."
        staging.notify("note", manifest.name, copy.target, text, copy.source)
    secret = secrets.token_urlsafe(32)
    async with _serving(staging, manifest, copy, secret) as serving:
        request = FetchRequest(
            manifest=manifest,
            revision=revision,
            cache=staging.settings.cache_on(copy.target),
            sources=tuple(
                From(
                    address=address,
                    port=port,
                    bind=way.target_address if copy.route.over == "link" else "",
                    lan_address=way.target_address if copy.route.over == "lan" else "",
                )
                for (address, port), way in zip(serving.ends, copy.route.ways, strict=True)
            ),
            secret=secret,
            streams=staging.settings.streams,
            reserve_bytes=staging.settings.reserve_bytes,
        )
        listener = staging.listener(copy.route.over, manifest.name, copy.target, copy.source)
        return await staging.ask(copy.target, "rsync_fetch", request, Arrived, listener=listener)


@asynccontextmanager
async def _serving(
    staging: StagingNodes, manifest: Manifest, copy: Copy, secret: str
) -> AsyncIterator[Serving]:
    """While entered, the source serves the target."""
    request = ServeRequest(
        kind=manifest.kind,
        name=manifest.name,
        cache=staging.settings.cache_on(copy.source),
        listen=tuple(Listen(address=way.source_address, peer=way.target_address) for way in copy.route.ways),
        secret=secret,
        limit_s=SERVE_LIMIT_S,
    )
    ready: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def listener(line: Line) -> None:
        if line.event == "result" and not ready.done():
            ready.set_result(line.value)

    server = asyncio.ensure_future(
        staging.ask(copy.source, "rsync_serve", request, Serving, listener=listener)
    )
    try:
        await asyncio.wait((ready, server), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await server  # raises its error
            raise StagingError(f"{copy.source}: the sender ended before the copy began.", do="Run it again.")
        serving = validated(copy.source, ready.result(), Serving)
        if len(serving.ends) != len(copy.route.ways):
            raise StagingError(
                f"{copy.source}: the sender listens on {len(serving.ends)} addresses, not {len(copy.route.ways)}."
            )
        yield serving
        await _stop(staging, copy.source, serving.pid)
        await asyncio.wait((server,), timeout=STOP_S)  # if it were killed earlier, its files would stay
    finally:
        server.cancel()
        with suppress(NodeError, asyncio.CancelledError):
            await server


async def _stop(staging: StagingNodes, node: str, pid: int) -> None:
    """Send SIGTERM to a sender, which then removes its files. If it does not end, it is killed with its command."""
    with suppress(NodeError):
        await staging.channels[node].run(("kill", "-TERM", str(pid)), timeout_s=STOP_S)
