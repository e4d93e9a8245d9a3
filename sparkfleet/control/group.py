"""A group: one running engine instance, as a replica of a Serve deployment.

The replica's actor holds every rank of the engine, proves that it generates, tells the controller what it sees, and
dies at once when any rank does, so that Serve replaces the whole group. It is not on the data path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import aiohttp

from sparkfleet.control.canary import FIRST_TOKEN_S, Probe, sanity, wait_healthy
from sparkfleet.control.liveness import Liveness
from sparkfleet.control.order import GroupOrder
from sparkfleet.control.rank import RankHolder
from sparkfleet.control.starting import Starting
from sparkfleet.control.status import GroupPhase, GroupReport, RankReport
from sparkfleet.engines.base import Engine
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.signatures import Cause, Diagnosis, Failure, classify, first_cause
from sparkfleet.errors import EngineError, NodeError, SparkfleetError
from sparkfleet.gateway.keys import engine_token
from sparkfleet.nodes.runtime.base import Phase, RankStatus
from sparkfleet.nodes.runtime.ports import free_port

log = logging.getLogger(__name__)

GIB = 1 << 30

HEARTBEAT_S = 2.0
START_PROGRESS_S = 1.0
ROOM_S = 60.0
"""How long a start waits for memory that another group gives back."""
PROOF_S = 30.0
"""How long an engine that moves no token may take for one."""
FLOOR_BYTES = {"cuda": 3 << 30, "cpu": 256 << 20}
"""MemAvailable below which a group is stopped. A Spark does not end a shortage politely: below 2 to 3 GiB the host wedges,
and has to be switched off (research on memory of GB10). A CPU node swaps or kills, so less will do."""
TAIL_LINES = 500


class Load(NamedTuple):
    """What an engine's metrics say of its work."""

    running: int
    waiting: int
    tokens: float | None
    """Generated since it started; None where its metrics did not answer."""
    drafted: float = 0.0
    """Draft tokens proposed since it started; 0 without speculation."""
    accepted: float = 0.0


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
            rung=order.rung,
            since=self._began,
        )
        self._floor = FLOOR_BYTES[order.candidate.device]
        self._low: dict[int, int] = {}
        """The least memory that was seen on each rank's node, bytes."""
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
        try:
            statuses, adopted = await self._take_ranks()
            url = f"http://{self._order.seats[0].address}:{statuses[0].port}"
            self._session = aiohttp.ClientSession()
            token = engine_token(self._secret.encode(), self._order.name)
            self._probe = Probe(self._session, url, self._order.deployment, token)
            self._say(self._report.phase, url=url, ranks=self._seen(statuses), adopted=adopted)
            measured = await self._until_exit(self._bring_up())
            statuses = await asyncio.gather(*(rank.status() for rank in self._ranks))
        except SparkfleetError as error:
            self._say(GroupPhase.FAILED, str(error), diagnosis=await self._diagnose(error))
            await self.stop(drain_s=0)
            raise
        self._say(
            GroupPhase.READY,
            started_s=round(time.time() - self._began, 3),
            measured=measured,
            ranks=self._seen(statuses),
        )

    async def watch(self) -> str:
        """Report every few seconds; return the reason when the engine is no more, and no rank of it is left.

        It is no more when any rank has exited, with whatever code, when it moves no token, or when memory ran out.
        """
        beat = asyncio.create_task(self._beat())
        exiting = asyncio.create_task(self._first_exit())
        try:
            await asyncio.wait({beat, exiting}, return_when=asyncio.FIRST_COMPLETED)
            self.ended = _exited_words(self._where, exiting.result()) if exiting.done() else beat.result()
        finally:
            await _cancel(beat, exiting)
        self._say(GroupPhase.FAILED, self.ended)
        await self._stop_ranks()
        return self.ended

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
        await self._room()
        rendezvous = free_port(self._order.seats[0].address) if len(self._ranks) > 1 else 0
        # All are waited for, also where one fails: a rank that is still being started cannot be stopped.
        started = await asyncio.gather(
            *(rank.start(rendezvous) for rank in self._ranks), return_exceptions=True
        )
        for status in started:
            if isinstance(status, BaseException):
                raise status
        return [status for status in started if isinstance(status, RankStatus)], False

    async def _room(self) -> None:
        """Wait for the memory that the plan counts with: a group that was stopped a moment ago gives it back late."""
        deadline = time.monotonic() + ROOM_S
        while lacking := [
            f"{rank.node} has {memory / GIB:.1f} GiB"
            for rank, memory in zip(self._ranks, await self._memory(), strict=True)
            if memory < self._order.needs
        ]:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"Each rank is predicted to need {self._order.needs / GIB:.1f} GiB; {', '.join(lacking)} available.",
                    means="It was not started: a Spark that runs out of memory has to be switched off.",
                    do="`sparkfleet doctor` shows what holds the memory.",
                )
            self._say(self._report.phase, f"waiting for memory: {', '.join(lacking)}")
            await asyncio.sleep(START_PROGRESS_S)

    async def _memory(self) -> list[int]:
        """Memory available on each rank's node, bytes; the least that was seen is kept."""
        found = await asyncio.gather(*(rank.memory() for rank in self._ranks))
        for index, memory in enumerate(found):
            self._low[index] = min(memory, self._low.get(index, memory))
        return found

    async def _diagnose(self, error: SparkfleetError) -> Diagnosis:
        """Why it did not start, from every rank's log, memory and end."""
        code = self._exited.exit_code if self._exited is not None else None
        told = []
        for index, rank in enumerate(self._ranks):
            lines = await _lines(rank)
            failure = Failure(
                engine=self._order.candidate.engine,
                method=self._order.candidate.speculation.method,
                exit_code=code,
                log=lines[-TAIL_LINES:],
                memory_low=self._low.get(index),
            )
            told.append(classify(failure))
        found = first_cause(told)
        if found.cause is Cause.UNKNOWN and self._exited is None:
            return found.model_copy(update={"says": error.what})  # it did not exit: what was seen says more
        return found

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

    async def _bring_up(self) -> dict[str, float]:
        """Wait for the server, then the canary; what was measured, by name."""
        assert self._probe is not None
        progress = asyncio.create_task(self._progress())
        custom = self._order.candidate.engine == "custom"
        path = self._order.candidate.health if custom else self._engine.health_path
        healthy = asyncio.create_task(wait_healthy(self._probe, path))
        try:
            await asyncio.wait({progress, healthy}, return_when=asyncio.FIRST_COMPLETED)
            if not healthy.done():
                progress.result()  # it ends early only by saying why
                await healthy
        finally:
            await _cancel(progress, healthy)
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
                statuses = await asyncio.gather(*(rank.status() for rank in self._ranks))
                logs = await asyncio.gather(*(rank.tail() for rank in self._ranks))
                self._check_memory(await self._memory())
            except NodeError:
                await asyncio.sleep(START_PROGRESS_S)
                continue
            starting.hear(time.monotonic(), logs)
            preparing = any(status.phase is Phase.PREPARING for status in statuses)
            phase = GroupPhase.PREPARING if preparing else GroupPhase.STARTING
            self._say(phase, starting.words(), ranks=self._seen(statuses))
            await asyncio.sleep(START_PROGRESS_S)

    def _check_memory(self, available: Sequence[int]) -> None:
        """Raise EngineError where a node is about to wedge."""
        for rank, memory in zip(self._ranks, available, strict=True):
            if memory < self._floor:
                raise EngineError(
                    f"Only {memory / GIB:.1f} GiB of memory are left on {rank.node}: the group is stopped.",
                    means="A host without memory does not recover: it has to be switched off.",
                    do="A smaller context or concurrency needs less; `sparkfleet plan` shows what would fit.",
                )

    async def _until_exit(self, work: Coroutine[None, None, dict[str, float]]) -> dict[str, float]:
        """Do the work, or raise EngineError as soon as a rank exits."""
        doing = asyncio.create_task(work)
        exiting = asyncio.create_task(self._first_exit())
        try:
            await asyncio.wait({doing, exiting}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            rank, self._exited = exiting.result()
        finally:
            await _cancel(doing, exiting)
        raise EngineError(
            f"The engine exited while it was starting{self._where(rank)} ({_exit_words(self._exited)}).",
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
                self._check_memory(await self._memory())
            except EngineError as error:
                return error.what
            except NodeError:
                continue  # the rank's exit says so, if that is what it is

    async def _prove(self) -> None:
        assert self._probe is not None
        await self._probe.one_token(PROOF_S)

    async def _load(self) -> Load:
        assert self._probe is not None
        engine = self._engine
        if not engine.metrics_path:
            return Load(running=0, waiting=0, tokens=0.0)  # nothing is known of its work
        names = (engine.running_metric, engine.waiting_metric, engine.tokens_metric)
        drafts = (engine.drafted_metric, engine.accepted_metric)
        found = await self._probe.gauges(engine.metrics_path, (*names, *filter(None, drafts)))
        return Load(
            running=int(found.get(names[0], 0)),
            waiting=int(found.get(names[1], 0)),
            tokens=found.get(names[2]),
            drafted=found.get(drafts[0], 0.0),
            accepted=found.get(drafts[1], 0.0),
        )

    async def _idle(self) -> None:
        while (load := await self._load()).running + load.waiting:
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


async def _lines(rank: RankHolder) -> tuple[str, ...]:
    """The last lines of a rank's log; () where its node is gone."""
    try:
        return tuple((await rank.tail()).replace("\r", "\n").splitlines())
    except NodeError:
        return ()


def _exited_words(where: Callable[[int], str], exit_: tuple[int, RankStatus]) -> str:
    rank, status = exit_
    return f"the engine exited{where(rank)}: {status.reason or status.exit_code}"


def _exit_words(status: RankStatus) -> str:
    if status.exit_code is None:
        return "no exit code"
    return f"signal {-status.exit_code}" if status.exit_code < 0 else f"exit code {status.exit_code}"
