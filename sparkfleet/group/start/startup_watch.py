"""Progress of a group's start, read from its ranks' logs: the phase of each, and the time since the last new line. Pure.

The text is sparkfleet's own: a line of an engine's log is never shown as progress.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkfleet.engines.startup_phases import ORDER, PhaseName, StartupPhase, latest
from sparkfleet.errors import EngineError
from sparkfleet.group.group_launch import SILENCE_S

_WIDTH = 160
"""Characters of a log line that are compared to recognise a new one."""

WORDS: dict[PhaseName, str] = {
    "loading": "loading",
    "compiling": "compiling",
    "warming": "warming up",
    "up": "the server is up",
}
_BUILD = re.compile(r"^builtin:[\w.-]+: (\S.*)$")
"""A line of the build of a built-in model (tiny_models/progress.py), which is sparkfleet's own."""
_OF_DEVELOPERS = re.compile(r"^training, |, loss [\d.]+| \(\d+ s\)$")
"""Parts of that line for developers only, or shown elsewhere: the phase's name, the loss, its age."""

SILENCES = 4
"""Limit of a start without its load, as a multiple of the allowed silence: an hour unless the deployment sets `silence`.
Compiling kernels, capturing graphs and building an engine take minutes each, half an hour together."""
LOAD_BYTES_PER_S = 25e6
"""The slowest load that is accepted: four nodes at once from one disk over Gigabit Ethernet. A Spark's SSD is a hundred
times as fast."""


def longest_s(needs: int, silence_s: float) -> float:
    """Longest duration of a start that keeps printing, seconds.

    Args:
        needs: predicted memory of a rank, bytes; it loads less.
        silence_s: time for which it may print nothing; a short one does not shorten the start.
    """
    return SILENCES * max(silence_s, SILENCE_S) + needs / LOAD_BYTES_PER_S


def never_ready(after_s: float, unhealthy: str, last_line: str) -> EngineError:
    """Error of a start that keeps printing and never becomes healthy. `unhealthy`: its health path's answer, in words."""
    last = f" {unhealthy}." if unhealthy else ""
    last += f" Its last output: {last_line}." if last_line else ""
    return EngineError(
        f"The engine is not healthy after {after_s / 60:.0f} minutes, and has not ended.{last}",
        means="It retries something, loads very slowly, or its node does not report its progress. It was stopped.",
        do="The next rung, if its ladder has one, is tried; `sparkfleet logs` shows the output. To allow a longer start,"
        f" set `silence` in the deployment: the limit is {SILENCES} times as many seconds, plus the time to load.",
    )


class StartupWatch:
    """Follows the logs of starting ranks.

    Args:
        ranks: their number.
        quiet_s: seconds without a new line of any rank after which the start counts as hung.
    """

    def __init__(self, ranks: int, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._steps: list[StartupPhase | None] = [None] * ranks
        self._lines = [""] * ranks
        self._new_at: float | None = None

    def update(self, now: float, logs: Sequence[str], unhealthy: str = "") -> None:
        """Takes the end of each rank's log, in order of ranks.

        Args:
            now: seconds of any clock that only goes forward.
            logs: the end of each log.
            unhealthy: its health path's answer, in words; "" if it does not answer, or 200.

        Raises:
            EngineError: no new line for too long.
        """
        lines = [_last_line(log) for log in logs]
        if self._new_at is None or lines != self._lines:
            self._new_at, self._lines = now, lines
            self._steps = [latest(_split(log), step) for log, step in zip(logs, self._steps, strict=True)]
        if now - self._new_at > self._quiet_s:
            raise _hangs(now - self._new_at, unhealthy)

    def words(self) -> str:
        """The phase of each rank whose log shows one; for a rank that is being prepared, the last line of the build."""
        shown = [_words(step) or _built(line) for step, line in zip(self._steps, self._lines, strict=True)]
        if len(shown) == 1:
            return shown[0]
        return " · ".join(f"rank {rank}: {words}" for rank, words in enumerate(shown) if words)

    def last_line(self) -> str:
        """The phase and the last line of the first rank that prints anything: evidence for an error, no progress."""
        shown = (
            " · ".join(filter(None, (_words(s), x))) for s, x in zip(self._steps, self._lines, strict=True)
        )
        return next(filter(None, shown), "")

    def step(self) -> StartupPhase | None:
        """The phase of the slowest rank, of those whose logs show one."""
        known = [step for step in self._steps if step is not None]
        return min(known, key=lambda step: (ORDER.index(step.phase), step.share or 0.0), default=None)


def _words(step: StartupPhase | None) -> str:
    if step is None:
        return ""
    return WORDS[step.phase] if step.share is None else f"{WORDS[step.phase]} {step.share:.0%}"


def _built(line: str) -> str:
    found = _BUILD.match(line)
    return _OF_DEVELOPERS.sub("", found[1]) if found else ""


def _split(log: str) -> list[str]:
    """Lines of a log; each state of a progress bar is a line, too."""
    return log.replace("\r", "\n").splitlines()


def _last_line(log: str) -> str:
    """The last line of a log that is not blank."""
    return next((line.strip()[:_WIDTH] for line in reversed(_split(log)) if line.strip()), "")


def _hangs(quiet_s: float, unhealthy: str) -> EngineError:
    last = f", and is not healthy: {unhealthy}." if unhealthy else "."
    return EngineError(
        f"The engine printed no log line for {quiet_s:.0f} s during its start{last}",
        means="Its server runs and does not become ready: it was stopped."
        if unhealthy
        else "It hangs, and was stopped.",
        do="The next rung, if its ladder has one, is tried; `sparkfleet logs` shows the last line. To allow a longer"
        " silence, set `silence` in the deployment, in seconds.",
    )
