"""Waits until the engine of a group is up and has generated its first token, and reports the progress meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

from sparkfleet.engines.base import DraftTokenCounts
from sparkfleet.errors import NodeError
from sparkfleet.group.canary import drafts_of
from sparkfleet.group.engine_client import EngineClient
from sparkfleet.group.exposed_sockets import refuse_exposed, watch_sockets
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.probe import FIRST_TOKEN_S, wait_healthy
from sparkfleet.group.ranks.rank_set import Ranks
from sparkfleet.group.ranks.rank_spec import is_forwarded
from sparkfleet.group.report import GroupPhase
from sparkfleet.group.report_sender import ReportSender
from sparkfleet.group.start.start_times import StartTimes
from sparkfleet.group.start.startup_watch import StartupWatch, longest_s, never_ready
from sparkfleet.group.tasks import cancel
from sparkfleet.runtime.base import Phase

START_PROGRESS_S = 1.0


class BringUp:
    """One start, from running ranks to the first token.

    Args:
        launch: of the group.
        ranks: of the group, which run.
        reports: get the progress.
        client: of the engine.
    """

    def __init__(
        self, launch: GroupLaunch, ranks: Ranks, reports: ReportSender, client: EngineClient
    ) -> None:
        self._launch = launch
        self._ranks = ranks
        self._reports = reports
        self._client = client
        self._watch = StartupWatch(len(ranks), launch.silence_s)
        self.times = StartTimes(time.monotonic())
        """Durations of its parts so far."""
        self._misplaced = ""
        """The wrong address that a custom workload listens on, in words."""

    async def until_first_token(self, *, adopted: bool) -> DraftTokenCounts:
        """Waits for the server and its first token. Returns its draft tokens before; an adopted engine has some.

        Raises:
            EngineError: it is silent or not healthy for too long, answers without its token, or does not generate.
        """
        probe, engine = self._client.probe, self._client.engine
        await self._until_healthy()
        self.times.note_up(time.monotonic())
        if engine.checks_token or is_forwarded(self._launch, 0):
            paths = {"/v1/models", self._client.health_path or "/", engine.metrics_path or "/"}
            await probe.refuses_strangers(*sorted(paths))
        if self._client.is_custom:
            await refuse_exposed(self._ranks.holders[0].sockets)
            return DraftTokenCounts()
        self._reports.enter(GroupPhase.PROBING, "requesting a first token")
        before = await drafts_of(probe, engine, self._launch.candidate.speculation)
        first_s = min(FIRST_TOKEN_S, self._launch.silence_s)
        await probe.one_token(max(first_s, self._launch.patience_s) if adopted else first_s)
        return before

    async def _until_healthy(self) -> None:
        probe = self._client.probe
        progress = asyncio.create_task(self._progress())
        healthy = asyncio.create_task(wait_healthy(probe, self._client.health_path))
        watching = {progress}
        if self._client.is_custom:
            watching.add(asyncio.create_task(self._watch_sockets()))
        limit_s = longest_s(self._launch.needs, self._launch.silence_s)
        try:
            done, _ = await asyncio.wait(
                {*watching, healthy}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise never_ready(limit_s, probe.unhealthy, self._misplaced or self._watch.last_line())
            if not healthy.done():
                for ended in done:
                    ended.result()  # it ends early only by raising the reason
        finally:
            await cancel(*watching, healthy)

    async def _progress(self) -> NoReturn:
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
            now = time.monotonic()
            self._watch.update(now, logs, self._client.probe.unhealthy)
            self.times.note(now, self._watch.step())
            preparing = any(status.phase is Phase.PREPARING for status in statuses)
            phase = GroupPhase.PREPARING if preparing else GroupPhase.STARTING
            parts = (self._misplaced, self._client.probe.unhealthy, self._watch.words())
            self._reports.enter(
                phase,
                " · ".join(filter(None, parts)),
                step=self._watch.step(),
                ranks=self._ranks.reports(statuses),
            )
            await asyncio.sleep(START_PROGRESS_S)

    async def _watch_sockets(self) -> NoReturn:
        def show(words: str) -> None:
            self._misplaced = words

        await watch_sockets(self._ranks.holders[0].sockets, show)
