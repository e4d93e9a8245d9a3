"""A group: one running engine instance, as a replica of a Serve deployment.

The replica's actor owns the rank of the engine by a lease, proves that it generates, tells the controller what it sees,
and dies at once when the engine does, so that Serve replaces the whole group. It is not on the data path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Protocol

import aiohttp

from sparkfleet.control.canary import Measured, Probe, wait_healthy
from sparkfleet.control.order import GroupOrder, rank_spec
from sparkfleet.control.status import GroupPhase, GroupReport
from sparkfleet.engines.base import Engine
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError, NodeError
from sparkfleet.nodes.runtime.base import Phase, Rank, RankStatus, Runtime
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
        runtime: how ranks run on this node.
        secret: the fleet's engine secret.
        report: where progress goes.
        node: this node's name, for people.
    """

    def __init__(self, order: GroupOrder, runtime: Runtime, secret: str, report: Reporter, node: str) -> None:
        self._order = order
        self._runtime = runtime
        self._secret = secret
        self._report_to = report
        self._engine: Engine = engine_by_name(order.candidate.engine)
        self._began = time.time()
        self._report = GroupReport(
            deployment=order.deployment,
            generation=order.generation,
            replica=0,
            phase=GroupPhase.STARTING,
            node=node,
            engine=order.candidate.engine,
            since=self._began,
        )
        self._rank: Rank | None = None
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
        return str(self._order.rank_id(self._report.replica))

    async def start(self) -> None:
        """Return when the engine has generated a token and been measured.

        Raises:
            EngineError: it exited, or it came up and does not generate. Nothing of it is left running.
        """
        rank, status, adopted = await self._take_rank()
        self._rank = rank
        self._session = aiohttp.ClientSession()
        spec_secret = dict(rank_spec(self._order, self._report.replica, status.port, self._secret).secret_env)
        url = f"http://127.0.0.1:{status.port}"
        self._probe = Probe(self._session, url, self._order.deployment, next(iter(spec_secret.values())))
        self._say(self._report.phase, url=url, pid=status.pid, adopted=adopted)
        try:
            measured = await self._until_exit(self._bring_up())
        except EngineError as error:
            self._say(GroupPhase.FAILED, str(error))
            await self.stop(drain_s=0)
            raise
        self._say(
            GroupPhase.READY,
            started_s=round(time.time() - self._began, 3),
            measured=measured.values(),
            pid=(await rank.status()).pid,
        )

    async def watch(self) -> RankStatus:
        """Report every few seconds; return when the engine has exited, with whatever code."""
        assert self._rank is not None
        beat = asyncio.create_task(self._beat())
        try:
            self.exited = await self._rank.wait()
        finally:
            beat.cancel()
        self._say(GroupPhase.FAILED, f"the engine exited: {self.exited.reason or self.exited.exit_code}")
        return self.exited

    async def stop(self, drain_s: float) -> None:
        """Wait for what the engine still answers, at most `drain_s`, then stop it and everything it started."""
        failed = self._report.phase is GroupPhase.FAILED  # why is the last thing it should be heard to say
        if self._probe is not None and drain_s > 0 and not failed:
            self._say(GroupPhase.DRAINING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._idle()
        if self._rank is not None:
            await self._rank.stop()
            await self._rank.close()
            self._rank = None
        if self._session is not None:
            await self._session.close()
        if not failed:
            self._say(GroupPhase.STOPPED)

    async def _take_rank(self) -> tuple[Rank, RankStatus, bool]:
        """The first replica number whose rank nobody owns, adopted where it runs already, started where not."""
        for replica in range(self._order.replicas):
            self._report = self._report.model_copy(update={"replica": replica})
            spec = rank_spec(self._order, replica, free_port("127.0.0.1"), self._secret)
            self._report = self._report.model_copy(update={"log_path": spec.log_path})
            rank = await self._runtime.own(spec.id)
            if rank is not None:
                status = await rank.status()
                if status.digest == spec.digest and status.phase in (Phase.PREPARING, Phase.RUNNING):
                    return rank, status, True
                await rank.stop()
                await rank.close()
            elif await self._taken(spec.id.slug):
                continue
            status = await self._runtime.start(spec)
            rank = await self._runtime.own(spec.id)
            if rank is not None:
                return rank, status, False
        raise EngineError(
            f"All {self._order.replicas} groups of {self._order.deployment} are owned by other replicas on this node.",
            means="A replica that should be gone still holds its rank.",
            do="It lets go within its lease; Serve tries again.",
        )

    async def _taken(self, slug: str) -> bool:
        return any(
            s.id.slug == slug and s.owned and s.phase is not Phase.EXITED for s in await self._runtime.list()
        )

    async def _bring_up(self) -> Measured:
        assert self._probe is not None
        progress = asyncio.create_task(self._progress())
        try:
            await wait_healthy(self._probe, self._engine.health_path)
        finally:
            progress.cancel()
        self._say(GroupPhase.PROBING, "asking for a token")
        await self._probe.one_token()
        return await self._probe.measure()

    async def _progress(self) -> None:
        """What the start is doing, from the rank's phase and the last line of its log."""
        assert self._rank is not None
        while True:
            try:
                status = await self._rank.status()
            except NodeError:
                return  # the supervisor is gone; `wait` says why
            phase = GroupPhase.PREPARING if status.phase is Phase.PREPARING else GroupPhase.STARTING
            self._say(phase, _last_line(Path(self._report.log_path)), pid=status.pid)
            await asyncio.sleep(START_PROGRESS_S)

    async def _until_exit(self, work: Coroutine[None, None, Measured]) -> Measured:
        """Do the work, or raise EngineError as soon as the engine exits."""
        assert self._rank is not None
        doing = asyncio.create_task(work)
        exiting = asyncio.create_task(self._rank.wait())
        try:
            await asyncio.wait({doing, exiting}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            self.exited = exiting.result()
        finally:
            doing.cancel()
            exiting.cancel()
        raise EngineError(
            f"The engine exited while it was starting ({_exit_words(self.exited)}).",
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


def _last_line(path: Path, size: int = 4096) -> str:
    """The last line of a log that says something, for a progress line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "")


def _exit_words(status: RankStatus) -> str:
    if status.exit_code is None:
        return "no exit code"
    return f"signal {-status.exit_code}" if status.exit_code < 0 else f"exit code {status.exit_code}"
