"""A group: one running engine instance, as a replica of a Serve deployment.

The replica's actor holds every rank of the engine, proves that it generates, tells the controller what it sees, and
dies at once when any rank does, so that Serve replaces the whole group. It is not on the data path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import aiohttp

from sparkfleet.control.canary import Measured, Probe, wait_healthy
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.rank import RankHolder
from sparkfleet.control.status import GroupPhase, GroupReport, RankReport
from sparkfleet.engines.base import Engine
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError, NodeError
from sparkfleet.gateway.keys import engine_token
from sparkfleet.nodes.runtime.base import Phase, RankStatus
from sparkfleet.nodes.runtime.ports import free_port

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
START_PROGRESS_S = 1.0


class Reporter(Protocol):
    """Takes what a group says of itself. Never raises: a controller that is away must not stop a group."""

    def __call__(self, report: GroupReport) -> None:
        """Deliver, without waiting."""
        ...


class Group:
    """Starts or adopts the engine of one group and keeps watch over it. Independent of Ray.

    Args:
        order: what to run.
        ranks: who holds each rank, in order. Rank 0 is on this node.
        secret: the fleet's engine secret.
        report: where progress goes.
    """

    def __init__(self, order: GroupOrder, ranks: Sequence[RankHolder], secret: str, report: Reporter) -> None:
        self._order = order
        self._ranks = tuple(ranks)
        self._secret = secret
        self._report_to = report
        self._engine: Engine = engine_by_name(order.candidate.engine)
        self._began = time.time()
        self._report = GroupReport(
            deployment=order.deployment,
            generation=order.generation,
            replica=order.replica,
            phase=GroupPhase.STARTING,
            node=order.seats[0].node,
            engine=order.candidate.engine,
            since=self._began,
        )
        self._probe: Probe | None = None
        self._session: aiohttp.ClientSession | None = None
        self.exited: RankStatus | None = None

    @property
    def url(self) -> str:
        """Where the engine listens, once `start` has returned."""
        return self._report.url

    @property
    def name(self) -> str:
        """The group's name, also what its internal token is derived from."""
        return self._order.name

    async def start(self) -> None:
        """Return when the engine has generated a token and been measured.

        Raises:
            EngineError: it exited, or it came up and does not generate. Nothing of it is left running.
        """
        try:
            statuses, adopted = await self._take_ranks()
            url = f"http://{self._order.seats[0].address}:{statuses[0].port}"
            self._session = aiohttp.ClientSession()
            token = engine_token(self._secret.encode(), self._order.name)
            self._probe = Probe(self._session, url, self._order.deployment, token)
            self._say(self._report.phase, url=url, ranks=self._seen(statuses), adopted=adopted)
            measured = await self._until_exit(self._bring_up())
            statuses = await asyncio.gather(*(rank.status() for rank in self._ranks))
        except (EngineError, NodeError) as error:
            self._say(GroupPhase.FAILED, str(error))
            await self.stop(drain_s=0)
            raise
        self._say(
            GroupPhase.READY,
            started_s=round(time.time() - self._began, 3),
            measured=measured.values(),
            ranks=self._seen(statuses),
        )

    async def watch(self) -> RankStatus:
        """Report every few seconds; return when any rank has exited, with whatever code, and no other is left."""
        beat = asyncio.create_task(self._beat())
        try:
            rank, self.exited = await self._first_exit()
        finally:
            beat.cancel()
        why = self.exited.reason or self.exited.exit_code
        self._say(GroupPhase.FAILED, f"the engine exited{self._where(rank)}: {why}")
        await self._stop_ranks()
        return self.exited

    async def stop(self, drain_s: float) -> None:
        """Wait for what the engine still answers, at most `drain_s`, then stop it and everything it started."""
        failed = self._report.phase is GroupPhase.FAILED  # why is the last thing it should be heard to say
        if self._probe is not None and drain_s > 0 and not failed:
            self._say(GroupPhase.DRAINING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._idle()
        await self._stop_ranks()
        if self._session is not None:
            await self._session.close()
        if not failed:
            self._say(GroupPhase.STOPPED)

    async def _take_ranks(self) -> tuple[list[RankStatus], bool]:
        """Every rank adopted where all of them run already; otherwise all of them started: no rank survives alone."""
        found = await asyncio.gather(*(rank.adopt() for rank in self._ranks))
        adopted = [status for status in found if status is not None]
        if len(adopted) == len(self._ranks):
            return adopted, True
        await self._stop_ranks()
        rendezvous = free_port(self._order.seats[0].address) if len(self._ranks) > 1 else 0
        return list(await asyncio.gather(*(rank.start(rendezvous) for rank in self._ranks))), False

    async def _stop_ranks(self) -> None:
        """Stop what is held. A node that cannot be asked stops its rank by itself when the lease runs out."""
        ended = await asyncio.gather(*(rank.stop() for rank in self._ranks), return_exceptions=True)
        for rank, error in zip(self._ranks, ended, strict=True):
            if error is not None:
                log.warning("rank on %s was not stopped: %r", rank.node, error)

    async def _first_exit(self) -> tuple[int, RankStatus]:
        """The first rank that has exited, and how."""
        waiting = [asyncio.create_task(rank.wait()) for rank in self._ranks]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            first = next(index for index, task in enumerate(waiting) if task.done())
            return first, waiting[first].result()
        finally:
            await _cancel(*waiting)

    def _where(self, rank: int) -> str:
        return f" on {self._ranks[rank].node} (rank {rank})" if len(self._ranks) > 1 else ""

    def _seen(self, statuses: Sequence[RankStatus]) -> tuple[RankReport, ...]:
        return tuple(
            RankReport(rank=index, node=rank.node, pid=status.pid, log_path=rank.log_path)
            for index, (rank, status) in enumerate(zip(self._ranks, statuses, strict=True))
        )

    async def _bring_up(self) -> Measured:
        assert self._probe is not None
        progress = asyncio.create_task(self._progress())
        try:
            await wait_healthy(self._probe, self._engine.health_path)
        finally:
            await _cancel(progress)
        self._say(GroupPhase.PROBING, "asking for a token")
        await self._probe.one_token()
        return await self._probe.measure()

    async def _progress(self) -> None:
        """What the start is doing, from each rank's phase and the last line of its log."""
        while True:
            try:
                statuses = await asyncio.gather(*(rank.status() for rank in self._ranks))
                lines = [_last_line(await rank.tail()) for rank in self._ranks]
            except NodeError:
                return  # a supervisor is gone; `wait` says why
            preparing = any(status.phase is Phase.PREPARING for status in statuses)
            phase = GroupPhase.PREPARING if preparing else GroupPhase.STARTING
            self._say(phase, self._told(lines), ranks=self._seen(statuses))
            await asyncio.sleep(START_PROGRESS_S)

    def _told(self, lines: list[str]) -> str:
        if len(lines) == 1:
            return lines[0]
        return " · ".join(f"rank {index}: {line}" for index, line in enumerate(lines) if line)

    async def _until_exit(self, work: Coroutine[None, None, Measured]) -> Measured:
        """Do the work, or raise EngineError as soon as a rank exits."""
        doing = asyncio.create_task(work)
        exiting = asyncio.create_task(self._first_exit())
        try:
            await asyncio.wait({doing, exiting}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            rank, self.exited = exiting.result()
        finally:
            await _cancel(doing, exiting)
        raise EngineError(
            f"The engine exited while it was starting{self._where(rank)} ({_exit_words(self.exited)}).",
            means=self.exited.reason,
            do=f"The whole log: `sparkfleet logs {self._order.deployment}`.",
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            running, waiting = await self._load()
            self._say(self._report.phase, running=running, waiting=waiting)

    async def _load(self) -> tuple[int, int]:
        assert self._probe is not None
        names = (self._engine.running_metric, self._engine.waiting_metric)
        gauges = await self._probe.gauges(self._engine.metrics_path, names)
        return int(gauges.get(names[0], 0)), int(gauges.get(names[1], 0))

    async def _idle(self) -> None:
        while sum(await self._load()):
            await asyncio.sleep(0.2)

    def _say(self, phase: GroupPhase, detail: str = "", **more: object) -> None:
        since = self._report.since if phase is self._report.phase else time.time()
        self._report = self._report.model_copy(
            update={"phase": phase, "detail": detail, "since": since, **more}
        )
        self._report_to(self._report)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel, and return when they have ended: nothing of them speaks after this."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _last_line(log: str) -> str:
    """The last line of a log that says something, for a progress line."""
    lines = log.replace("\r", "\n").splitlines()
    return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "")


def _exit_words(status: RankStatus) -> str:
    if status.exit_code is None:
        return "no exit code"
    return f"signal {-status.exit_code}" if status.exit_code < 0 else f"exit code {status.exit_code}"
