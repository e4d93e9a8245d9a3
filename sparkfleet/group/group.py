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

from sparkfleet.errors import EngineError, NodeError, SparkfleetError
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.end_note import EndNote
from sparkfleet.group.engine_client import EngineClient
from sparkfleet.group.exit_watch import ExitWatch
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.hang_detector import HangDetector
from sparkfleet.group.ranks.answer_watch import ANSWER_S
from sparkfleet.group.ranks.rank_holder import RankHolder
from sparkfleet.group.ranks.rank_set import Ranks
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.report_sender import GroupReporter, ReportSender
from sparkfleet.group.serving_watch import (
    health_failure,
    send_heartbeats,
    stopped_process,
    watch_health,
    watch_progress,
)
from sparkfleet.group.start.bring_up import BringUp
from sparkfleet.group.start.speed import MeasuringTurns
from sparkfleet.group.start.start_checks import StartChecks
from sparkfleet.group.tasks import cancel
from sparkfleet.runtime.files.token_secrets import mark_of

log = logging.getLogger(__name__)

BARRED_LOOK_S = 1.0
"""Seconds between two questions of a group that waits for a drained node."""
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
        report: receives the progress.
        backoff: counts its recent starts.
        wanted: is asked before its engine is stopped: Serve also replaces an actor that only stalled.
        barred: is asked before its engine is started, and not before it is adopted.
        after: the end of the actor before, if that is known; its first report has it.
        turns: those of the groups on rank 0's node, so that none is measured while another starts.
        end_note: of its engine's last end, for the group's next actor.
        token_secret: reads the secret of its engine's token, once rank 0 is held.
    """

    def __init__(
        self,
        launch: GroupLaunch,
        ranks: Sequence[RankHolder],
        report: GroupReporter,
        backoff: Backoff,
        *,
        wanted: Wanted,
        barred: Barred,
        after: str,
        turns: MeasuringTurns,
        end_note: EndNote,
        token_secret: Callable[[], str],
    ) -> None:
        self._launch = launch
        self._ranks = Ranks(launch, ranks, backoff)
        self._backoff = backoff
        self._token_secret = token_secret
        self._reports = ReportSender(launch, report)
        self._exit_watch = ExitWatch(self._ranks, self._reports, launch.name)
        self._wanted = wanted
        self._barred = barred
        self._turns = turns
        self._after = f"{ACTOR}: {after}" if after else ""
        self._end_note = end_note
        self._lost = end_note.take()
        self._began = time.monotonic()
        self._client: EngineClient | None = None
        """Of its engine, once its ranks run."""
        self._hang_detector = HangDetector(launch.timeouts)
        self._unwell = ""
        """The failure of its last health check, in words: a custom workload has no counters."""
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

        Its speed is measured before, or, if other engines of the node are starting or it was adopted, once it is idle.

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
            async with self._turns.starting():
                if not adopted:
                    statuses = await self._ranks.start(partial(self._reports.enter, GroupPhase.STARTING))
                self._exit_watch.begin()
                secret = self._token_secret()
                token = engine_token(secret.encode(), self._launch.name)
                client = self._client = EngineClient(self._launch, statuses[0].port, token)
                self._reports.enter(
                    self._reports.last.phase,
                    url=client.url,
                    ranks=self._ranks.reports(statuses),
                    adopted=adopted,
                    secret=mark_of(secret),
                )
                bring_up = BringUp(self._launch, self._ranks, self._reports, client)
                drafts = await self._exit_watch.until_exit(bring_up.until_first_token(adopted=adopted))
            # The API of a custom workload is unknown: only its health can be checked.
            measured: dict[str, float] = {}
            if not client.is_custom:
                checks = StartChecks(self._launch, self._reports, client, self._turns)
                measured = await self._exit_watch.until_exit(checks.run(drafts, adopted=adopted))
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
            start_times={} if adopted else bring_up.times.seconds(time.monotonic()),
            measured=measured,
            ranks=self._ranks.reports(statuses),
            lost="",
        )
        self._end_note.note_serving()

    async def watch(self) -> str:
        """Reports every few seconds; returns the reason when the engine has ended and no rank of it is left, or when its
        ranks were released for the group's next actor.

        It ends when a rank has exited, with any code, when its counters stop and a probe fails, when its health check
        fails, or when memory ran out. It is released if the holder of a rank is lost and it goes on generating.
        """
        client = self._client
        assert client is not None
        probe = client.probe
        works = [send_heartbeats(partial(self._report_load, client)), self._ranks.answers.watch()]
        measuring = None
        if client.engine.metrics_path:  # without metrics its progress is unknown
            checks = StartChecks(self._launch, self._reports, client, self._turns)
            measuring = asyncio.create_task(checks.measure_once_idle())
            works.append(self._watch_progress(client))
        else:
            check = partial(stopped_process, self._ranks.holders[0].sockets)
            if self._launch.probed:
                healthy = partial(probe.healthy, client.health_path)
                check = partial(health_failure, healthy, client.health_path)
            works.append(watch_health(check, self._launch.timeouts, self._show_unwell))
        try:
            await self._exit_watch.until_exit(*works)
        except EngineError as error:
            if words := await self._outlives_a_holder(client):
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
        if serves and self._client is not None and drain_s > 0:
            await self._drain(self._client, drain_s)
        async with self._reports.repeating():
            await self._ranks.stop()
            await self._close()
        if not failed:
            self._backoff.forget()
            self._end_note.forget()
            self._reports.enter(GroupPhase.STOPPED)

    async def _drain(self, client: EngineClient, drain_s: float) -> None:
        """Waits for the last requests, at most `drain_s`: less if a rank exits, the engine hangs or memory runs out."""
        self._reports.enter(GroupPhase.DRAINING)
        works = [client.until_idle(), send_heartbeats(partial(self._report_load, client))]
        if client.engine.metrics_path:
            works.append(self._watch_progress(client))
        with contextlib.suppress(TimeoutError, SparkfleetError):
            async with asyncio.timeout(drain_s):
                await self._exit_watch.until_exit(*works)

    async def _watch_progress(self, client: EngineClient) -> NoReturn:
        patience_s = self._launch.patience_s
        await watch_progress(client.read_load, client.probe.one_token, patience_s, self._hang_detector)

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

    async def _outlives_a_holder(self, client: EngineClient) -> str:
        """Words for an engine that is wanted and generates although a rank's holder was lost; "" for any other end.

        Only a token proves that the rank without a holder runs: its node cannot be asked.
        """
        lost = self._exit_watch.exited
        if lost is None or lost.exit_code is not None or client.is_custom:  # a rank's own end has a code
            return ""
        if not await client.generates() or not await self._wanted():
            return ""
        return f"{lost.reason}; the engine generates on all ranks and runs on, and the group's next actor adopts it"

    async def _release(self, words: str) -> None:
        await self._close()
        await self._ranks.release()
        self._reports.enter(GroupPhase.STOPPED, words)

    async def _close(self) -> None:
        await self._exit_watch.close()
        if self._client is not None:
            await self._client.close()

    def _report_load(self, client: EngineClient) -> None:
        load = client.load
        self._reports.enter(
            self._reports.last.phase,
            self._doubts(),
            running=client.connections() if client.is_custom else load.running,
            waiting=load.waiting,
            drafted=load.drafted,
            accepted=load.accepted,
            draft_steps=load.draft_steps,
            accepted_by_position=load.accepted_by_position,
            tokens=load.figures[0] if load.figures else None,
        )

    def _doubts(self) -> str:
        """The present reasons for which it may not serve well, in words; "" for none."""
        hangs = self._hang_detector.doubt(time.monotonic()) or self._unwell
        if hangs:
            hangs += f"; `sparkfleet logs {self._launch.name}` shows its output"
        return "; ".join(filter(None, (self._ranks.answers.quiet(), hangs)))

    def _show_unwell(self, words: str) -> None:
        self._unwell = words


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
