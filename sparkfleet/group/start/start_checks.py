"""Checks of an engine that has generated its first token: its speed, its output (the canary), and a chat."""

from __future__ import annotations

import asyncio

from sparkfleet.engines.base import DraftTokenCounts
from sparkfleet.errors import EngineError
from sparkfleet.group.canary import drafts_of, sanity
from sparkfleet.group.engine_client import EngineClient
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.report import WRONG_OUTPUT, GroupPhase
from sparkfleet.group.report_sender import ReportSender
from sparkfleet.group.start.speed import TURN_S, MeasuringTurns, measure_speed

LOOK_S = 2.0
"""Seconds between two looks for a moment in which an engine that serves can be measured."""
FEWEST_STEPS = 20
"""Steps of speculation from which their mean is that of a measurement's text: three streams have 40 to 190."""
LATER_S = 60.0
"""The same after a measurement that failed."""


class StartChecks:
    """The checks of one start.

    Args:
        launch: of the group.
        reports: get the steps and the readings.
        client: of the engine, which generates.
        turns: those of the groups on rank 0's node, so that none is measured while another starts.
    """

    def __init__(
        self, launch: GroupLaunch, reports: ReportSender, client: EngineClient, turns: MeasuringTurns
    ) -> None:
        self._launch = launch
        self._reports = reports
        self._client = client
        self._turns = turns

    async def run(self, before: DraftTokenCounts, *, adopted: bool) -> dict[str, float]:
        """Measures its speed if that means something now, runs the canary, and tries a chat. Returns the readings by name.

        Args:
            before: its draft tokens before its first token.
            adopted: True if it ran already; then it may have requests of others.

        Raises:
            EngineError: its output is wrong, or it generates no longer.
        """
        measured: dict[str, float] = {}
        unused = adopted and await self._client.is_unused()
        if not adopted or unused:
            self._reports.enter(GroupPhase.PROBING, "measuring its speed", unused=unused)
            measured = await self._measure(TURN_S)
        self._reports.enter(GroupPhase.PROBING, "checking its output (canary)")
        candidate = self._launch.candidate
        async with self._turns.starting():
            found = await sanity(
                self._client.probe, self._client.engine, candidate.speculation, before, candidate.model
            )
            # No reason to stop it: a base model has no chats, and what it completes is sound.
            refusal = await self._client.probe.chat_refusal()
        self._reports.enter(
            GroupPhase.PROBING,
            self._reports.last.detail,
            unchecked=found.unchecked(),
            complaint=found.complaint(),
            chat_refusal=refusal,
        )
        if complaint := found.complaint():
            raise EngineError(
                f"{WRONG_OUTPUT}: {complaint}.",
                means="It would have served wrong answers without an error, so it was stopped.",
                do="The next rung, if its ladder has one, is tried; "
                f"`sparkfleet describe {self._launch.deployment}` shows it.",
            )
        return measured | found.values()

    async def measure_once_idle(self) -> None:
        """Measures an engine that serves without a rate, while it has no requests of others and no other engine starts.

        Again after a minute and after ever longer pauses, as long as its streams give none.
        """
        is_tried = "decode_tps_spread" in self._reports.last.measured
        pause_s = LATER_S if is_tried else LOOK_S
        while "decode_tps" not in self._reports.last.measured:
            await asyncio.sleep(pause_s)
            load = self._client.load
            if load.figures is None or load.running + load.waiting:
                continue
            try:
                found = await self._measure(0)
            except EngineError:  # the watch finds out if it is gone
                pause_s = LATER_S
                continue
            if found and not (await self._client.read_load()).running:
                self._reports.enter(self._reports.last.phase, measured=self._reports.last.measured | found)
            if found:  # without a rate: streams of others, or an engine whose own differ each time
                pause_s = max(LATER_S, 2 * pause_s)

    async def _measure(self, wait_s: float) -> dict[str, float]:
        """The speed, by name; {} if other groups of the node start or are measured for longer than `wait_s`."""
        async with self._turns.alone(wait_s) as quiet:
            if not quiet:
                return {}
            probe, engine, drafts = (
                self._client.probe,
                self._client.engine,
                self._launch.candidate.speculation,
            )
            before = await drafts_of(probe, engine, drafts)
            found = (await measure_speed(probe.measure)).values()
            after = await drafts_of(probe, engine, drafts)
        steps = after.steps - before.steps
        if (
            steps >= FEWEST_STEPS
        ):  # the speed is that of its own text: with others it has other tokens per step
            found["tokens_per_step"] = 1.0 + (after.accepted - before.accepted) / steps
        return found
