"""Progress of a group's start, read from its ranks' logs: a phase of each, and the time since anything new came. Pure.

Words are sparkfleet's own: a line of an engine's log is never shown as progress.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkfleet.engines.startup_phases import ORDER, Phase, StartupPhase, latest
from sparkfleet.errors import EngineError
from sparkfleet.group.launch_plan import SILENCE_S

_WIDTH = 160
"""Characters of a log line by which it is known to be new."""

WORDS: dict[Phase, str] = {
    "loading": "loading",
    "compiling": "compiling",
    "warming": "warming up",
    "up": "the server is up",
}
_BUILD = re.compile(r"^builtin:[\w.-]+: (\S.*)$")
"""A line of the build of an embedded model (tiny_models/progress.py), which is sparkfleet's own."""
_OF_DEVELOPERS = re.compile(r"^training, |, loss [\d.]+| \(\d+ s\)$")
"""What the line says twice or to developers: the phase's name, the loss, the time since it was new."""

SILENCES = 4
"""A start may take as long as so many of the silences that it is allowed, beside its load: an hour where the deployment
does not say otherwise. Compiling kernels, capturing graphs and building an engine take minutes each, half an hour together.
"""
LOAD_BYTES_PER_S = 25e6
"""The slowest load that is waited for: from a disk that is shared over Gigabit Ethernet, by four nodes at once. The SSD of a
Spark is a hundred times as fast."""


def longest_s(needs: int, silence_s: float) -> float:
    """Longest duration of a start that keeps printing, seconds.

    Args:
        needs: memory that a rank is predicted to take, bytes; what it loads is less.
        silence_s: how long it may print nothing; a short one does not shorten the start.
    """
    return SILENCES * max(silence_s, SILENCE_S) + needs / LOAD_BYTES_PER_S


def never_ready(after_s: float, saying: str) -> EngineError:
    """Error of a start that keeps printing and never becomes healthy; `saying` is its last output."""
    last = f" It was at: {saying}." if saying else ""
    return EngineError(
        f"The engine is not healthy after {after_s / 60:.0f} minutes, and has not ended.{last}",
        means="It tries something again and again, loads from something very slow, or its node does not say what it does."
        " It was stopped.",
        do="Another rung of the ladder is tried; the log shows what it repeats. A start that takes longer is allowed by"
        f" `silence` in the deployment: {SILENCES} times as many seconds, and the time to load.",
    )


class Starting:
    """Listens to the logs of starting ranks.

    Args:
        ranks: how many there are.
        quiet_s: how long all of them together may print nothing new before the start is taken for hung, seconds.
    """

    def __init__(self, ranks: int, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._steps: list[StartupPhase | None] = [None] * ranks
        self._lines = [""] * ranks
        self._heard_at: float | None = None

    def hear(self, now: float, logs: Sequence[str]) -> None:
        """Take the last of each rank's log, in order of ranks.

        Args:
            now: seconds of any clock that only goes forward.
            logs: the last of each log.

        Raises:
            EngineError: nothing new came for too long.
        """
        lines = [_last_line(log) for log in logs]
        if self._heard_at is None or lines != self._lines:
            self._heard_at, self._lines = now, lines
            self._steps = [latest(_split(log), step) for log, step in zip(logs, self._steps, strict=True)]
        if now - self._heard_at > self._quiet_s:
            raise _hangs(now - self._heard_at)

    def words(self) -> str:
        """The phase of each rank whose log shows one; of a rank that is being prepared, the last line of the build."""
        told = [_words(step) or _built(line) for step, line in zip(self._steps, self._lines, strict=True)]
        if len(told) == 1:
            return told[0]
        return " · ".join(f"rank {rank}: {words}" for rank, words in enumerate(told) if words)

    def last_line(self) -> str:
        """The phase and the last line of the first rank that prints anything: evidence for an error, no progress."""
        told = (
            " · ".join(filter(None, (_words(s), x))) for s, x in zip(self._steps, self._lines, strict=True)
        )
        return next(filter(None, told), "")

    def step(self) -> StartupPhase | None:
        """The step of the rank that is least far, of those whose logs show one."""
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
    """Lines of a log; bars that are printed over one another are lines, too."""
    return log.replace("\r", "\n").splitlines()


def _last_line(log: str) -> str:
    """The last line of a log that says something."""
    return next((line.strip()[:_WIDTH] for line in reversed(_split(log)) if line.strip()), "")


def _hangs(quiet_s: float) -> EngineError:
    return EngineError(
        f"The engine has said nothing for {quiet_s:.0f} s while it was starting.",
        means="It hangs; it was stopped.",
        do="Another rung of the ladder is tried; the log shows where it stopped. A start that is silent for longer is"
        " allowed by `silence` in the deployment, in seconds.",
    )
