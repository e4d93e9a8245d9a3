"""A group: one running engine instance, as a replica of a Serve deployment.

The replica's actor holds every rank of the engine, proves that it generates, tells the controller what it sees, and
dies at once when any rank does, so that Serve replaces the whole group. It is not on the data path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Protocol

import aiohttp

from sparkfleet.control.canary import FIRST_TOKEN_S, Probe, sanity, wait_healthy
from sparkfleet.control.liveness import Liveness
from sparkfleet.control.load import Load, read_load
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.rank import RankHolder
from sparkfleet.control.ranks import Ranks, cancel
from sparkfleet.control.starting import Starting, longest_s, never_ready
from sparkfleet.control.status import GroupPhase, GroupReport
from sparkfleet.engines.base import Engine
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError, NodeError, SparkfleetError
from sparkfleet.gateway.keys import engine_token
from sparkfleet.nodes.runtime.base import Phase, RankStatus

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
START_PROGRESS_S = 1.0
PROOF_S = 30.0
"""How long an engine that moves no token may take for one."""


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
        self._ranks = Ranks(order, ranks)
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
            rung=order.rung,
            since=self._began,
        )
        self._probe: Probe | None = None
        self._session: aiohttp.ClientSession | None = None
        self._exited: RankStatus | None = None
        self.ended = ""
        """Why the engine is no more; "" as long as it is."""

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
        self._say(GroupPhase.STARTING)  # before anything is: a start that takes the node down must be known
        try:
            statuses, adopted = await self._ranks.take(partial(self._say, GroupPhase.STARTING))
            url = f"http://{self._order.seats[0].address}:{statuses[0].port}"
            self._session = aiohttp.ClientSession()
            token = engine_token(self._secret.encode(), self._order.name)
            self._probe = Probe(self._session, url, self._order.deployment, token)
            self._say(self._report.phase, url=url, ranks=self._ranks.reports(statuses), adopted=adopted)
            measured = await self._until_exit(self._bring_up())
            statuses = await self._ranks.statuses()
        except SparkfleetError as error:
            self._say(
                GroupPhase.FAILED, str(error), diagnosis=await self._ranks.diagnose(error, self._exited)
            )
            await self.stop(drain_s=0)
            raise
        self._say(
            GroupPhase.READY,
            started_s=round(time.time() - self._began, 3),
            measured=measured,
            ranks=self._ranks.reports(statuses),
        )

    async def watch(self) -> str:
        """Report every few seconds; return the reason when the engine is no more, and no rank of it is left.

        It is no more when any rank has exited, with whatever code, when it moves no token, or when memory ran out.
        """
        beat = asyncio.create_task(self._beat())
        exiting = asyncio.create_task(self._ranks.first_exit())
        try:
            await asyncio.wait({beat, exiting}, return_when=asyncio.FIRST_COMPLETED)
            self.ended = self._exited_words(*exiting.result()) if exiting.done() else beat.result()
        finally:
            await cancel(beat, exiting)
        self._say(GroupPhase.FAILED, self.ended)
        await self._ranks.stop()
        return self.ended

    async def stop(self, drain_s: float) -> None:
        """Wait for what the engine still answers, at most `drain_s`, then stop it and everything it started."""
        failed = self._report.phase is GroupPhase.FAILED  # why is the last thing it should be heard to say
        if self._probe is not None and drain_s > 0 and not failed:
            self._say(GroupPhase.DRAINING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._idle()
        await self._ranks.stop()
        if self._session is not None:
            await self._session.close()
        if not failed:
            self._say(GroupPhase.STOPPED)

    async def _bring_up(self) -> dict[str, float]:
        """Wait for the server, then the canary; what was measured, by name."""
        assert self._probe is not None
        progress = asyncio.create_task(self._progress())
        custom = self._order.candidate.engine == "custom"
        path = self._order.candidate.health if custom else self._engine.health_path
        healthy = asyncio.create_task(wait_healthy(self._probe, path))
        limit_s = longest_s(self._order.needs, self._order.silence_s)
        try:
            done, _ = await asyncio.wait(
                {progress, healthy}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise never_ready(limit_s, self._report.detail)
            if not healthy.done():
                progress.result()  # it ends early only by saying why
                await healthy
        finally:
            await cancel(progress, healthy)
        if custom:
            return {}  # what it serves is its own: its health is all that can be asked
        self._say(GroupPhase.PROBING, "asking for a token")
        await self._probe.one_token(min(FIRST_TOKEN_S, self._order.silence_s))
        measured = await self._probe.measure()
        self._say(GroupPhase.PROBING, "reading its own probabilities")
        speculates = self._order.candidate.speculation.method != "none"
        found = await sanity(
            self._probe,
            self._engine.metrics_path,
            self._engine.drafted_metric if speculates else "",
            self._engine.accepted_metric,
        )
        if complaint := found.complaint():
            raise EngineError(
                f"The engine is up and its output is wrong: {complaint}.",
                means="Nobody would have seen an error: answers would have been nonsense.",
                do="Another rung of the ladder is tried; `sparkfleet describe` shows which.",
            )
        return measured.values() | found.values()

    async def _progress(self) -> None:
        """What the start is doing, from each rank's phase and the last line of its log.

        A supervisor that does not answer is asked again: memory has to be watched on. One that is gone is an exit.

        Raises:
            EngineError: no rank says anything any more, or a node runs out of memory.
        """
        starting = Starting(len(self._ranks), self._order.silence_s)
        while True:
            try:
                statuses = await self._ranks.statuses()
                logs = await self._ranks.tails()
                await self._ranks.check_memory()
            except NodeError:
                await asyncio.sleep(START_PROGRESS_S)
                continue
            starting.hear(time.monotonic(), logs)
            preparing = any(status.phase is Phase.PREPARING for status in statuses)
            phase = GroupPhase.PREPARING if preparing else GroupPhase.STARTING
            self._say(phase, starting.words(), ranks=self._ranks.reports(statuses))
            await asyncio.sleep(START_PROGRESS_S)

    async def _until_exit(self, work: Coroutine[None, None, dict[str, float]]) -> dict[str, float]:
        """Do the work, or raise EngineError as soon as a rank exits."""
        doing = asyncio.create_task(work)
        exiting = asyncio.create_task(self._ranks.first_exit())
        try:
            await asyncio.wait({doing, exiting}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            rank, self._exited = exiting.result()
        finally:
            await cancel(doing, exiting)
        raise EngineError(
            f"The engine exited while it was starting{self._ranks.where(rank)} ({_exit_words(self._exited)}).",
            means=self._exited.reason,
            do=f"The whole log: `sparkfleet logs {self._order.deployment}`.",
        )

    async def _beat(self) -> str:
        """Report load, watch memory and tokens; returns why the group must end."""
        liveness = Liveness()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            load = await self._load()
            self._say(
                self._report.phase,
                running=load.running,
                waiting=load.waiting,
                drafted=load.drafted,
                accepted=load.accepted,
            )
            if liveness.is_suspect(time.monotonic(), load.running, load.tokens):
                try:
                    await self._prove()
                except EngineError as error:
                    return f"it runs and generates nothing: {error.what}"
                liveness.proved(time.monotonic())
            try:
                await self._ranks.check_memory()
            except EngineError as error:
                return error.what
            except NodeError:
                continue  # the rank's exit says so, if that is what it is

    async def _prove(self) -> None:
        assert self._probe is not None
        await self._probe.one_token(PROOF_S)

    async def _load(self) -> Load:
        assert self._probe is not None
        return await read_load(self._probe, self._engine)

    async def _idle(self) -> None:
        while (load := await self._load()).running + load.waiting:
            await asyncio.sleep(0.2)

    def _exited_words(self, rank: int, status: RankStatus) -> str:
        return f"the engine exited{self._ranks.where(rank)}: {status.reason or status.exit_code}"

    def _say(self, phase: GroupPhase, detail: str = "", **more: object) -> None:
        since = self._report.since if phase is self._report.phase else time.time()
        self._report = self._report.model_copy(
            update={"phase": phase, "detail": detail, "since": since, **more}
        )
        self._report_to(self._report)


async def die_with_the_engine(group: Group) -> None:
    """Watch over a group, and end this process with the watch, so that Serve makes another one at once.

    Serve itself would wait for three failed health checks.
    """
    try:
        await group.watch()
    except Exception:  # nobody would watch any more: the next one adopts what is well
        log.exception("the watch over %s ended", group.name)
    await asyncio.sleep(0.2)  # the report is on its way
    os.kill(os.getpid(), signal.SIGKILL)


def _exit_words(status: RankStatus) -> str:
    if status.exit_code is None:
        return "no exit code"
    return f"signal {-status.exit_code}" if status.exit_code < 0 else f"exit code {status.exit_code}"
