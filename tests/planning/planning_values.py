"""Values that the tests of `planning` share."""

from __future__ import annotations

from sparkfleet.bench.shapes import find_arch
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.physics import physics
from sparkfleet.planning.arch import Arch
from sparkfleet.planning.memory import NodeMemory
from sparkfleet.units import GIB

NVFP4 = "nvidia/Llama-3.3-70B-Instruct-FP4"
FP8, MOE = "Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3-30B-A3B-FP8"

SPARK_TOTAL = 121.6 * GIB
SPARK = NodeMemory(total=SPARK_TOTAL).room


def model(
    name: str, format_: str, gb: float | None = None, total: float | None = None, active: float | None = None
) -> Arch:
    arch = find_arch(name, architectures(), total_b=total, active_b=active, notes="")
    stored = arch.quantised(physics().formats[format_].bits)
    return sized(stored, gb) if gb else stored


def sized(arch: Arch, gb: float) -> Arch:
    scale = gb * 1e9 / arch.bytes
    parts = tuple(part.model_copy(update={"bits": part.bits * scale}) for part in arch.parts)
    return arch.model_copy(update={"parts": parts})


def choice(found):
    assert not found.refused, found.refused
    return found.deployments[0].groups[0].choice


def ladder(found):
    return found.deployments[0].groups[0].ladder


def refusal(found):
    (one,) = found.refused
    return one
