"""Startup phase of an engine, read from a line of its log. Pure.

Engines overwrite their progress bars in one line: the last percentage in a line counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from sparkfleet.values import Value

PhaseName = Literal["loading", "compiling", "warming", "up"]

ORDER: tuple[PhaseName, ...] = ("loading", "compiling", "warming", "up")

_SIGNS: tuple[tuple[PhaseName, str], ...] = (
    # vLLM 0.19 to 0.32, SGLang 0.5.12 to 0.5.23, TensorRT-LLM 1.3: all end their server's start with uvicorn's line.
    # llama.cpp b11434 listens while it loads; its last line has the address.
    (
        "up",
        r"Application startup complete|The server is fired up and ready to roll|llama_server: listening on",
    ),
    (
        "warming",
        r"load_model: initializing, n_slots"
        r"|Capturing CUDA graphs|Graph capturing finished"
        r"|Capturing batches|Capture [\w ]*cuda graph|\bwarm(?:ing)?[- ]?up\b(?! model for the compilation)",
    ),
    # Whole words: the configuration that an engine prints before it loads contains all of these, with underscores.
    (
        "compiling",
        r"Warming up model for the compilation"
        r"|torch\.compile (?:takes|took)|vLLM's torch\.compile|Dynamo bytecode transform|Compiling a graph|\bautotun"
        r"|\bJIT[- ](?:pre-)?compil(?:e\b|ing)",
    ),
    (
        "loading",
        r"load_model: loading model"
        r"|Loading safetensors|(?:checkpoint|loading) shards|Starting to load model|Loading weights|Load weight (begin|end)",
    ),
)
_LOADED = re.compile(r"Model loading took|Load weight end", re.IGNORECASE)
"""Lines with which vLLM and SGLang end the load of a checkpoint; a draft of its own is loaded after it."""
_LEFT_OUT = re.compile(r"\b(?:disabl|skip)(?:ed|ing|ping)\b", re.IGNORECASE)
"""Lines that name a phase but announce that the engine skips it."""

_SHARE = re.compile(r"(\d{1,3})% ?(?:Completed|\|)")
WIDTH = 4000
"""Characters of a line that are searched, from its end."""


class StartupPhase(Value):
    """Startup phase of an engine."""

    phase: PhaseName
    share: float | None = None
    """Share of this phase that is done, 0 to 1; None if the line has none."""


def step_of(line: str) -> StartupPhase | None:
    """Phase in one log line; None for most."""
    tail = line[-WIDTH:]
    if _LEFT_OUT.search(tail):
        return None
    if _LOADED.search(tail):
        return StartupPhase(phase="loading", share=1.0)
    for phase, pattern in _SIGNS:
        if re.search(pattern, tail, re.IGNORECASE):
            shares = _SHARE.findall(tail)
            return StartupPhase(phase=phase, share=min(1.0, int(shares[-1]) / 100) if shares else None)
    return None


def latest(lines: Iterable[str], before: StartupPhase | None = None) -> StartupPhase | None:
    """Startup phase after these lines. Never goes back to an earlier phase: engines warm up more than once."""
    found = before
    for line in lines:
        step = step_of(line)
        if step is not None and (found is None or ORDER.index(step.phase) >= ORDER.index(found.phase)):
            found = step
    return found
