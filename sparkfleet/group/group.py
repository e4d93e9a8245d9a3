"""A group: one running engine instance, as a replica of a Serve deployment.

The replica's actor holds every rank of the engine, proves that it generates, reports to the controller, and dies at once
when any rank does, so that Serve replaces the whole group. If it only loses the holder of a rank, and the engine goes on
generating, the next actor adopts that. It is not on the data path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NoReturn

import aiohttp

from sparkfleet.engines.base import DraftTokenCounts, Engine
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError, NodeError, SparkfleetError
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.group.canary import drafts_of, sanity
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.end_note import EndNote
from sparkfleet.group.engine_load import Load, read_load
from sparkfleet.group.exit_watch import ExitWatch
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.hang_detector import Liveness
from sparkfleet.group.misplaced import refuse_exposed, watch_sockets
from sparkfleet.group.probe import FIRST_TOKEN_S, Probe, wait_healthy
from sparkfleet.group.ranks.rank_holder import RankHolder
from sparkfleet.group.ranks.rank_set import ANSWER_S, Ranks, cancel
from sparkfleet.group.ranks.rank_spec import is_forwarded
from sparkfleet.group.report import WRONG_OUTPUT, GroupPhase
from sparkfleet.group.report_sender import GroupReporter, ReportSender
from sparkfleet.group.serving_watch import beat, follow, generates, stays_well
from sparkfleet.group.speed import TURN_S, QuietBox, measured_speed
from sparkfleet.group.startup_watch import Starting, longest_s, never_ready
from sparkfleet.runtime.base import Phase
from sparkfleet.runtime.files.token_secrets import mark_of
from sparkfleet.runtime.ports import has_connections

log = logging.getLogger(__name__)

START_PROGRESS_S = 1.0
LOOK_S = 2.0
"""Seconds between two looks for a moment in which an engine that serves can be measured."""
BARRED_LOOK_S = 1.0
"""Seconds between two questions of a group that waits for a drained node."""
LATER_S = 60.0
"""The same after a measurement that failed."""
UNUSED_TOKENS = 16
"""Tokens of an engine that has generated the first token of its start only; with drafts that is a few at once."""
ACTOR = "the group's last actor"
RELEASED = f"{ACTOR} was stopped by Ray Serve while its engine is wanted: the engine runs on, and the next actor adopts it"

Wanted = Callable[[], Awaitable[bool]]
"""True if this group is still wanted at this rung. Never raises: True if that is not known."""


Barred = Callable[[], Awaitable[str]]
"""The reason for which this group's engine may not start now, in words; "" if it may. Never raises: "" if not known."""


class Group:
    """Starts or adopts the engine of one group and keeps watch over it. Independent of Ray.

    Args:
        launch: what to run.
        ranks: the holder of each rank, in order. Rank 0 is on this node.
        secret: the fleet's engine secret.
        report: receives the progress.
        backoff: counts its recent starts.
        wanted: is asked before its engine is stopped: Serve also replaces an actor that only stalled.
        barred: is asked before its engine is started, and not before it is adopted.
        after: the end of the actor before, if that is known; its first report has it.
        box: turns of the groups of rank 0's box, so that none is measured while another starts.
        end_note: of its engine's last end, for the group's next actor.
        token_secret: the secret of rank 0's token once it is held; None: the engine secret.
    """

    def __init__(
        self,
        launch: GroupLaunch,
        ranks: Sequence[RankHolder],
        secret: str,
        report: GroupReporter,
        backoff: Backoff,
        *,
        wanted: Wanted,
        barred: Barred,
        after: str,
        box: QuietBox,
        end_note: EndNote,
        token_secret: Callable[[], str] | None = None,
    ) -> None:
        self._launch = launch
        self._ranks = Ranks(launch, ranks, backoff)
        self._backoff = backoff
        self._token_secret = token_secret or (lambda: secret)
        self._reports = ReportSender(launch, report)
        self._exit_watch = ExitWatch(self._ranks, self._reports, launch.name)
        self._wanted = wanted
        self._barred = barred
        self._box = box
        self._after = f"{ACTOR}: {after}" if after else ""
        self._end_note = end_note
        self._lost = end_note.take()
        self._engine: Engine = engine_by_name(launch.candidate.engine)
        self._began = time.monotonic()
        self._is_custom = launch.candidate.engine == "custom"
        self._health = launch.candidate.health if self._is_custom else self._engine.health_path
        self._probe: Probe | None = None
        self._session: aiohttp.ClientSession | None = None
        self._load = Load(running=0, waiting=0, figures=None)
        self._liveness = Liveness(launch.timeouts)
        self._unwell = ""
        """The failure of its last health check, in words: a custom workload has no counters."""
        self._misplaced = ""
        """The wrong address that a custom workload listens on, in words."""
        self._stops = False
        """True once it is being stopped, or released: a start that is under way fails by that, and reports no failure."""
        self.ended = ""
        """Reason of the engine's end; "" while it runs."""

    @property
    def url(self) -> str:
        """Address of the engine, once `start` has returned."""
        return self._reports.last.url

    @property
    def secret(self) -> str:
        """Mark of the secret of its engine's token, once `start` has returned."""
        return self._reports.last.secret

    @property
    def name(self) -> str:
        """The group's name; its internal token is derived from it."""
        return self._launch.name

    async def start(self) -> None:
        """Returns when the engine has generated a token and passed the canary.

        Its speed is measured before, or, if other engines of the box are starting or it was adopted, once it is idle.

        Raises:
            EngineError: it exited, or it is up and does not generate. No process of it is left.
        """
        async with self._reports.repeating():
            await self._start()

    async def _start(self) -> None:
        # First of all: a start that takes the node down must be known.
        self._reports.enter(GroupPhase.STARTING, self._after, lost=self._lost)
        try:
            statuses = await self._ranks.adopt()
            adopted = bool(statuses)
            if not adopted:
                self._reports.enter(GroupPhase.STARTING, self._after, lost=self._lost or self._ranks.lost)
                await self._until_allowed()
            async with self._box.starting():
                if not adopted:
                    statuses = await self._ranks.start(partial(self._reports.enter, GroupPhase.STARTING))
                self._exit_watch.begin()
                url = f"http://{self._launch.placements[0].address}:{statuses[0].port}"
                # A check of a custom workload must not leave a connection: `_is_busy` would count it.
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(force_close=self._is_custom)
                )
                secret = self._token_secret()
                token = engine_token(secret.encode(), self._launch.name)
                self._probe = Probe(self._session, url, self._launch.deployment, token)
                ranks = self._ranks.reports(statuses)
                self._reports.enter(
                    self._reports.last.phase, url=url, ranks=ranks, adopted=adopted, secret=mark_of(secret)
                )
                drafts = await self._exit_watch.until_exit(self._bring_up(adopted))
            # The API of a custom workload is unknown: only its health can be checked.
            measured = (
                {} if self._is_custom else await self._exit_watch.until_exit(self._checked(drafts, adopted))
            )
            # A supervisor or a rank's actor may hang beside an engine that generates.
            with contextlib.suppress(NodeError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    statuses = await self._ranks.statuses()
        except Exception as error:
            if self._stops:
                raise EngineError("It was stopped while it was starting.") from error
            failure = error if isinstance(error, SparkfleetError) else _unexpected(error)
            await self._fail(failure)
            if failure is error:
                raise
            raise failure from error
        self._reports.enter(
            GroupPhase.READY,
            started_s=round(time.monotonic() - self._began, 3),
            measured=measured,
            ranks=self._ranks.reports(statuses),
            lost="",
        )
        self._end_note.serves()

    async def watch(self) -> str:
        """Reports every few seconds; returns the reason when the engine has ended and no rank of it is left, or when its
        ranks were released for the group's next actor.

        It ends when a rank has exited, with any code, when its counters stop and a probe fails, when its health check
        fails, or when memory ran out. It is released if the holder of a rank is lost and it goes on generating.
        """
        assert self._probe is not None
        works = [beat(self._report_load), self._ranks.watch_answers()]
        measuring = asyncio.create_task(self._measure_once_idle()) if self._engine.metrics_path else None
        if self._engine.metrics_path:  # without metrics its progress is unknown
            works.append(self._follow(self._probe))
        elif self._launch.probed:
            healthy = partial(self._probe.healthy, self._health)
            works.append(stays_well(healthy, self._health, self._launch.timeouts, self._show_unwell))
        try:
            await self._exit_watch.until_exit(*works)
        except EngineError as error:
            if words := await self._outlives_a_holder():
                await self._release(words)
                return words
            diagnosis = await self._ranks.diagnose(error, self._exit_watch.exited, served=True)
            self.ended = error.what.removesuffix(".")
            if diagnosis.summary != error.what:
                self.ended += f" ({diagnosis})"
            self._reports.enter(GroupPhase.FAILED, self.ended, diagnosis=diagnosis)
            self._end_note.leave(self.ended)
        finally:
            if measuring is not None:
                await cancel(measuring)
        await self._ranks.stop()
        return self.ended

    async def stop(self, drain_s: float) -> None:
        """Waits for the engine's running requests, at most `drain_s`, then stops it and everything it started.

        An engine that is still wanted runs on, without a wait, for the next actor of this group.
        """
        self._stops = True
        failed = self._reports.last.phase is GroupPhase.FAILED  # its last report must be the reason
        if not failed and await self._wanted():
            await self._release(RELEASED)
            return
        serves = self._reports.last.phase is GroupPhase.READY  # an engine that still loads has no requests
        async with self._reports.repeating():
            if serves and drain_s > 0:
                self._reports.enter(GroupPhase.DRAINING)
                with contextlib.suppress(TimeoutError, SparkfleetError):
                    async with asyncio.timeout(drain_s):
                        await self._exit_watch.until_exit(self._idle())
            await self._ranks.stop()
            await self._close()
        if not failed:
            self._backoff.forget()
            self._end_note.forget()
            self._reports.enter(GroupPhase.STOPPED)

    async def _fail(self, error: SparkfleetError) -> None:
        """Reports a failed start, and ends what it has started."""
        diagnosis = await self._ranks.diagnose(error, self._exit_watch.exited)
        self._reports.enter(GroupPhase.FAILED, str(error), diagnosis=diagnosis, was_starting=True)
        await self.stop(drain_s=0)

    async def _until_allowed(self) -> None:
        """Waits while one of its nodes is drained. Reports that each time, as a silent group counts as gone."""
        while reason := await self._barred():
            self._reports.enter(GroupPhase.BARRED, reason)
            await asyncio.sleep(BARRED_LOOK_S)
        if self._reports.last.phase is GroupPhase.BARRED:
            self._reports.enter(GroupPhase.STARTING)
            self._began = time.monotonic()

    async def _outlives_a_holder(self) -> str:
        """Words for an engine that is wanted and generates although a rank's holder was lost; "" for any other end.

        Only a token proves that the rank without a holder runs: its node cannot be asked.
        """
        lost = self._exit_watch.exited
        if lost is None or lost.exit_code is not None or self._is_custom:  # a rank's own end has a code
            return ""
        assert self._probe is not None
        if not await generates(self._read_load, self._probe.one_token) or not await self._wanted():
            return ""
        return f"{lost.reason}; the engine generates on all ranks and runs on, and the group's next actor adopts it"

    async def _release(self, words: str) -> None:
        await self._close()
        await self._ranks.release()
        self._reports.enter(GroupPhase.STOPPED, words)

    async def _close(self) -> None:
        await self._exit_watch.close()
        if self._session is not None:
            await self._session.close()

    async def _bring_up(self, adopted: bool) -> DraftTokenCounts:
        """Waits for the server and its first token. Returns its draft tokens before; an adopted engine has some."""
        assert self._probe is not None
        starting = Starting(len(self._ranks), self._launch.silence_s)
        progress = asyncio.create_task(self._progress(starting))
        healthy = asyncio.create_task(wait_healthy(self._probe, self._health))
        watching = {progress}
        if self._is_custom:
            watching.add(asyncio.create_task(self._watch_sockets()))
        limit_s = longest_s(self._launch.needs, self._launch.silence_s)
        try:
            done, _ = await asyncio.wait(
                {*watching, healthy}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise never_ready(limit_s, self._probe.unhealthy, self._misplaced or starting.last_line())
            if not healthy.done():
                for ended in done:
                    ended.result()  # it ends early only by raising the reason
        finally:
            await cancel(*watching, healthy)
        if self._engine.checks_token or is_forwarded(self._launch, 0):
            paths = {"/v1/models", self._health or "/", self._engine.metrics_path or "/"}
            await self._probe.refuses_strangers(*sorted(paths))
        if self._is_custom:
            await refuse_exposed(self._ranks.holders[0].sockets)
            return DraftTokenCounts()
        self._reports.enter(GroupPhase.PROBING, "requesting a first token")
        before = await drafts_of(self._probe, self._engine, self._launch.candidate.speculation)
        first_s = min(FIRST_TOKEN_S, self._launch.silence_s)
        wait_s = max(first_s, self._launch.patience_s) if adopted else first_s
        await self._probe.one_token(wait_s)
        return before

    async def _checked(self, before: DraftTokenCounts, adopted: bool) -> dict[str, float]:
        """Measures its speed if that means something now, and runs the canary; readings by name."""
        assert self._probe is not None
        measured: dict[str, float] = {}
        unused = adopted and await self._is_unused()
        if not adopted or unused:
            self._reports.enter(GroupPhase.PROBING, "measuring its speed", unused=unused)
            measured = await self._measured(TURN_S)
        self._reports.enter(GroupPhase.PROBING, "checking its output (canary)")
        async with self._box.starting():
            found = await sanity(self._probe, self._engine, self._launch.candidate.speculation, before)
        self._reports.enter(
            GroupPhase.PROBING,
            self._reports.last.detail,
            unchecked=found.unchecked(),
            complaint=found.complaint(),
        )
        if complaint := found.complaint():
            raise EngineError(
                f"{WRONG_OUTPUT}: {complaint}.",
                means="It would have served wrong answers without an error, so it was stopped.",
                do="The next rung, if its ladder has one, is tried;"
                f" `sparkfleet describe {self._launch.deployment}` shows it.",
            )
        return measured | found.values()

    async def _is_unused(self) -> bool:
        """True if an adopted engine has served nobody: it was started before its group, while Ray started."""
        load = await self._read_load()
        return (
            load.figures is not None and not load.running + load.waiting and load.figures[0] <= UNUSED_TOKENS
        )

    async def _measured(self, wait_s: float) -> dict[str, float]:
        """Its speed, by name; {} if other groups of the box start or are measured for longer than `wait_s`."""
        assert self._probe is not None
        async with self._box.alone(wait_s) as quiet:
            return (await measured_speed(self._probe.measure)).values() if quiet else {}

    async def _measure_once_idle(self) -> None:
        """Measures an engine that serves already, while it has no requests of others and no other engine starts."""
        pause_s = LOOK_S
        while "decode_tps" not in self._reports.last.measured:
            await asyncio.sleep(pause_s)
            if self._load.figures is None or self._load.running + self._load.waiting:
                continue
            try:
                found = await self._measured(0)
            except EngineError:  # the watch finds out if it is gone
                pause_s = LATER_S
                continue
            if found and not (await self._read_load()).running:
                self._reports.enter(self._reports.last.phase, measured=self._reports.last.measured | found)

    async def _progress(self, starting: Starting) -> None:
        """Reports the progress of the start, from each rank's phase and its log.

        A supervisor that does not answer is read again. One that is gone counts as an exit.

        Raises:
            EngineError: no rank has printed anything for too long.
        """
        while True:
            try:
                statuses = await self._ranks.statuses()
                logs = await self._ranks.tails()
            except NodeError:
                await asyncio.sleep(START_PROGRESS_S)
                continue
            starting.update(time.monotonic(), logs, self._unhealthy())
            preparing = any(status.phase is Phase.PREPARING for status in statuses)
            phase = GroupPhase.PREPARING if preparing else GroupPhase.STARTING
            words = " · ".join(filter(None, (self._misplaced, self._unhealthy(), starting.words())))
            self._reports.enter(phase, words, step=starting.step(), ranks=self._ranks.reports(statuses))
            await asyncio.sleep(START_PROGRESS_S)

    def _unhealthy(self) -> str:
        return self._probe.unhealthy if self._probe is not None else ""

    async def _watch_sockets(self) -> NoReturn:
        def show(words: str) -> None:
            self._misplaced = words

        await watch_sockets(self._ranks.holders[0].sockets, show)

    def _report_load(self) -> None:
        load = self._load
        self._reports.enter(
            self._reports.last.phase,
            self._doubts(),
            running=load.running,
            waiting=load.waiting,
            drafted=load.drafted,
            accepted=load.accepted,
            tokens=load.figures[0] if load.figures else None,
        )

    def _doubts(self) -> str:
        """The present reasons for which it may not serve well, in words; "" for none."""
        hangs = self._liveness.doubt(time.monotonic()) or self._unwell
        if hangs:
            hangs += f"; `sparkfleet logs {self._launch.name}` shows its output"
        return "; ".join(filter(None, (self._ranks.quiet(), hangs)))

    async def _follow(self, probe: Probe) -> NoReturn:
        await follow(self._read_load, probe.one_token, self._launch.patience_s, self._liveness)

    def _show_unwell(self, words: str) -> None:
        self._unwell = words

    async def _read_load(self) -> Load:
        assert self._probe is not None
        self._load = await read_load(self._probe, self._engine, self._launch.candidate.speculation.tokens)
        return self._load

    async def _idle(self) -> None:
        while await self._is_busy():
            await asyncio.sleep(0.2)

    async def _is_busy(self) -> bool:
        if self._is_custom:
            # Its work is unknown, and its clients are not: gateways close idle connections in seconds.
            return has_connections(self._launch.candidate.port or 0)
        load = await self._read_load()
        return load.running + load.waiting > 0 or load.figures is None


async def die_with_the_engine(group: Group) -> None:
    """Watches a group, and ends this process with the watch, so that Serve starts another one at once.

    Serve itself would wait for three failed health checks.
    """
    try:
        await group.watch()
    except Exception:  # without a watch it must end: the next process adopts the running ranks
        log.exception("the watch over %s failed", group.name)
    await asyncio.sleep(0.2)  # the report is on its way
    os.kill(os.getpid(), signal.SIGKILL)


def _unexpected(error: Exception) -> EngineError:
    return EngineError(
        f"The start failed: {error!r}.",
        means="This kind of failure is not known: a file or the memory of its node, or a defect of sparkfleet.",
        do="The next rung, if its ladder has one, is tried. `sparkfleet bundle` writes the file for a report.",
    )
