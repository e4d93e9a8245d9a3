"""Predicted duration of an engine's start on a Spark, part by part. Pure.

Weights by the rate of their loader, the rest by what was published of starts (`starts` of `knowledge/hardware.yaml`). The
first start compiles kernels; later ones find them in the node's caches (`engines/kernel_caches.py`). `docs/starts.md` has
the published starts that it was held against.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparkfleet.knowledge.data_file import MeasuredRange
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.units import GB

LOADING_FLAGS = ("--load-format", "--safetensors-load-strategy", "--model-loader-extra-config")
"""Flags of vLLM that choose the way in which weights are read."""
_MAPPED = ("auto", "safetensors", "lazy", "")
"""Values of flags with which vLLM and SGLang map weight files."""
_SGLANG_LOADING = ("--load-format", "--weight-loader-disable-mmap", "--model-loader-extra-config")


class StartSeconds(NamedTuple):
    """A predicted duration with its band."""

    low: float
    mid: float
    high: float


class StartTime(NamedTuple):
    """Seconds from an engine's process to its server; the checks of a start come on top."""

    engine: StartSeconds
    weights: StartSeconds
    kernels_first: StartSeconds
    kernels_later: StartSeconds
    warm_up: StartSeconds

    @property
    def first(self) -> StartSeconds:
        """The whole of a start with empty caches."""
        return _sum((self.engine, self.weights, self.kernels_first, self.warm_up))

    @property
    def later(self) -> StartSeconds:
        """The whole of a start with the caches of an earlier one."""
        return _sum((self.engine, self.weights, self.kernels_later, self.warm_up))


def predicted_start(candidate: Candidate, weights_bytes: float) -> StartTime | None:
    """The start of a candidate; None if nothing is known of its engine, of its loader, or on a CPU.

    Args:
        candidate: with all its arguments.
        weights_bytes: of its checkpoint on the disk.
    """
    parts = hardware().starts.get(candidate.engine)
    weights = _weights(candidate, weights_bytes)
    if parts is None or weights is None or candidate.device != "cuda":
        return None
    eager = "--enforce-eager" in parse_flags(candidate.engine_args)
    later = _seconds(parts.kernels_later_s)
    return StartTime(
        engine=_seconds(parts.engine_s),
        weights=weights,
        kernels_first=later if eager else _seconds(parts.kernels_first_s),
        kernels_later=later,
        warm_up=StartSeconds(0, 0, 0) if eager else _seconds(parts.warm_up_s),
    )


def _weights(candidate: Candidate, weights_bytes: float) -> StartSeconds | None:
    if not weights_bytes:
        return None
    rates, gb, flags = hardware().loading, weights_bytes / GB, parse_flags(candidate.engine_args)
    if candidate.engine == "llama.cpp":
        return _at(gb, rates.direct_gb_per_s)
    whole = not candidate.mmap or flags.get("--safetensors-load-strategy") == "eager"
    if candidate.engine == "vllm" and whole:
        return _at(gb, rates.read_gb_per_s)  # every rank reads all files
    own = LOADING_FLAGS if candidate.engine == "vllm" else _SGLANG_LOADING
    if any(
        flags[flag] not in _MAPPED or flag == "--weight-loader-disable-mmap" for flag in own if flag in flags
    ):
        return None
    return _at(gb / candidate.shape.ranks, rates.mapped_gb_per_s)


def _at(gb: float, rate: MeasuredRange) -> StartSeconds:
    return StartSeconds(gb / rate.high, gb / rate.value, gb / rate.low)


def _seconds(known: MeasuredRange) -> StartSeconds:
    return StartSeconds(known.low, known.value, known.high)


def _sum(parts: Iterable[StartSeconds]) -> StartSeconds:
    return StartSeconds(*map(sum, zip(*parts, strict=True)))
