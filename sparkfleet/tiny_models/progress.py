"""Progress of a build: a stream of values, and a printer for people and logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TextIO

from sparkfleet.tiny_models.criterion import Measure, words_of
from sparkfleet.values import Value

BuildPhase = Literal["waiting", "loading", "tokenizer", "training", "saving"]

WORDS: dict[BuildPhase, str] = {
    "waiting": "waiting for another build of this model",
    "loading": "loading torch and transformers",
    "tokenizer": "training the tokenizer",
    "training": "training",
    "saving": "writing the checkpoint",
}


class BuildProgress(Value):
    """The state of a build. Fields after `phase` are set in phase "training" only.

    A caller that shows one line needs `fraction`, `eta_s` and perhaps `criterion_words`.
    """

    name: str
    phase: BuildPhase
    step: int = 0
    steps: int = 0
    """Steps of this round and earlier ones. It grows if a model misses its criterion and gets a further round."""
    loss: float | None = None
    eta_s: float | None = None
    """Seconds left of this round."""
    measure: Measure | None = None
    """The measure that is tracked in training."""
    value: float | None = None
    """Its current value; None before the first measurement."""
    limit: float | None = None
    """The limit that it has to reach."""

    @property
    def criterion_words(self) -> str:
        """The criterion's current value and its limit; "" before the first measurement."""
        if self.measure is None or self.value is None or self.limit is None:
            return ""
        return words_of(self.measure, self.value, self.limit)

    def __str__(self) -> str:
        words = f"builtin:{self.name}: {WORDS[self.phase]}"
        if self.steps:
            words += f", step {self.step} of {self.steps}"
        if self.loss is not None:
            words += f", loss {self.loss:.2f}"
        if self.criterion_words:
            words += f", {self.criterion_words}"
        if self.eta_s is not None:
            words += f", about {self.eta_s:.0f} s left"
        return words


OnProgress = Callable[[BuildProgress], None]


def silent(_: BuildProgress) -> None:
    """Ignores progress."""


class Printer:
    """Prints progress to a stream: one line that is overwritten on a terminal, otherwise a line every `every_s` seconds.

    Without new progress (an import, another builder's lock), the last line is repeated with the elapsed seconds.
    """

    def __init__(self, stream: TextIO, *, every_s: float = 2.0) -> None:
        self._stream = stream
        self._every_s = every_s
        self._over = "\r\x1b[K" if stream.isatty() else ""
        self._lock = threading.Lock()
        self._last: BuildProgress | None = None
        self._phase_began = self._said_at = time.monotonic()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="builtin-progress", daemon=True)

    def __enter__(self) -> Printer:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._ticker.join()
        if self._over and self._last is not None:
            self._stream.write("\n")

    def __call__(self, progress: BuildProgress) -> None:
        """Keeps `progress`, and prints it if its phase is new or a line is due."""
        with self._lock:
            new_phase = self._last is None or self._last.phase != progress.phase
            self._last = progress
            if new_phase:
                self._phase_began = time.monotonic()
            if new_phase or self._due():
                self._print(str(progress))

    def _tick(self) -> None:
        while not self._closed.wait(self._every_s / 4):
            with self._lock:
                if self._last is not None and self._due():
                    self._print(f"{self._last} ({time.monotonic() - self._phase_began:.0f} s)")

    def _due(self) -> bool:
        return time.monotonic() - self._said_at >= self._every_s

    def _print(self, line: str) -> None:
        self._said_at = time.monotonic()
        end = "" if self._over else "\n"
        self._stream.write(f"{self._over}{line}{end}")
        self._stream.flush()
