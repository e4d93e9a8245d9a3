"""Values that the tests of `planner` and `perf` share."""

from __future__ import annotations

from sparkfleet.accuracy.models import Size, Stored, find_shape
from sparkfleet.errors import Infeasible
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.perf.memory.demand import NodeMemory
from sparkfleet.perf.model_shape import ModelShape
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.units import GIB

NVFP4 = "nvidia/Llama-3.3-70B-Instruct-FP4"
FP8, MOE = "Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3-30B-A3B-FP8"

SPARK_TOTAL = 121.6 * GIB
SPARK = NodeMemory(total=SPARK_TOTAL).room


BESIDE = ("mtp", "vision")


def model(
    name: str, format_: str, gb: float | None = None, total: float | None = None, active: float | None = None
) -> ModelShape:
    """A model's decoder by its name; a published size is that of the decoder alone."""
    if total is None and gb is not None:
        total = 2 * gb  # of models whose config cannot be read: as many as that size has in four bits
    found = find_shape(name, architectures(), Stored(format_), Size(total, active))
    decoder = tuple(part for part in found.parts if part.kind not in BESIDE)
    stored = found.model_copy(update={"parts": decoder})
    return sized(stored, gb) if gb else stored


def sized(shape: ModelShape, gb: float) -> ModelShape:
    scale = gb * 1e9 / shape.bytes
    parts = tuple(part.model_copy(update={"bits": part.bits * scale}) for part in shape.parts)
    return shape.model_copy(update={"parts": parts})


def plan_on(spec, nodes, links=()):
    """The plan of a deployment that these nodes can serve; raises Infeasible otherwise."""
    found = plan_fleet([spec], Fleet(nodes=tuple(nodes), links=tuple(links)))
    if found.refused:
        reasons = "\n".join(one.reason for one in found.refused[0].rejected)
        raise Infeasible(f"{spec.name} is refused.", means=reasons)
    return found.deployments[0]


def choice(found):
    assert not found.refused, found.refused
    return found.deployments[0].groups[0].choice


def ladder(found):
    return found.deployments[0].groups[0].ladder


def refusal(found):
    (one,) = found.refused
    return one
