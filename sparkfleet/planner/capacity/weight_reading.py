"""The way in which an engine reads its weight files: mapped (mmap), or as a whole. Pure.

On a Spark a mapped file is read page by page, at a sixth of the rate: vLLM has an 80B model in FP8 after 521 s with its
default and after 88 s with files that are read as a whole (`loading` of `knowledge/hardware.yaml`). That takes the memory of
a few files while it loads, before the KV cache exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparkfleet.knowledge.hardware import hardware
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import MemoryUse
from sparkfleet.planner.capacity.proposal import Sizing
from sparkfleet.planner.capacity.start_time import LOADING_FLAGS
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.units import GB

FILES_AT_ONCE = 3
"""Files in memory at the peak: the tensors of the one before, the bytes of this one and its tensors (vLLM 0.32,
`safetensors_weights_iterator`; its loop over files of 512 MB peaks at 3.06 times that)."""
READS_FILES = parse_range(">=0.11")
"""Releases of vLLM with `--safetensors-load-strategy` (vllm-project/vllm#24469). SGLang has a flag, too, but reads ten files
at once, which nobody has measured on a Spark."""
RESIDENT = (MemoryUse.WEIGHTS, MemoryUse.DRAFTER, MemoryUse.PROCESS, MemoryUse.COMMUNICATORS)
"""Parts of a rank's memory that are there while it loads."""


class LoadingTimes(NamedTuple):
    """Predicted seconds of the weights alone."""

    read: float
    mapped: float


def chooses_reading(flags: Mapping[str, str]) -> bool:
    """True if flags choose the way in which weights are read."""
    return any(flag in flags for flag in LOADING_FLAGS)


def reads_files(candidate: Candidate, largest_file: int | None, sized: Sizing, room: MemoryBudget) -> bool:
    """True if the engine can read whole files, and its node has the memory for that with the host's reserve kept.

    Args:
        candidate: with all its arguments: its own choice of a way to read is kept.
        largest_file: bytes; None if the files are not known.
        sized: what a rank takes, part by part.
        room: bytes that its node has for it.
    """
    if candidate.engine != "vllm" or candidate.device != "cuda" or largest_file is None:
        return False
    if READS_FILES.contains(candidate.engine_version) is not Truth.YES:
        return False
    if chooses_reading(parse_flags(candidate.engine_args)):
        return False
    resident = sum(part.bytes for part in sized.parts if part.name in RESIDENT)
    return resident + FILES_AT_ONCE * largest_file <= room.careful


def loading_times(weights_bytes: float, ranks: int) -> LoadingTimes:
    """Times to read weights: files as a whole on every rank, or each rank's share of mapped ones."""
    rates = hardware().loading
    gb = weights_bytes / GB
    return LoadingTimes(gb / rates.read_gb_per_s.value, gb / ranks / rates.mapped_gb_per_s.value)
