"""The predicted start of a candidate in a plan: in one line, and part by part."""

from __future__ import annotations

from sparkfleet.planner.capacity.start_time import StartTime, predicted_start
from sparkfleet.planner.capacity.weight_reading import loading_times
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import Rung
from sparkfleet.units import rough_duration


def start_lines(rung: Rung) -> list[str]:
    """Predicted duration of a start and of the first one, and of its weights; none if nothing is known."""
    found = _start(rung)
    if found is None:
        return []
    first = f", the first {rough_duration(found.first.mid)}" if found.first != found.later else ""
    ends = f"{rough_duration(found.later.low)} to {rough_duration(found.later.high)}"
    weights = f"weights {rough_duration(found.weights.mid)}{_if_mapped(rung)}"
    return lines_of("start", f"about {rough_duration(found.later.mid)} predicted ({ends}){first}; {weights}")


def start_part_lines(rung: Rung) -> list[str]:
    """The same with all its parts."""
    found = _start(rung)
    if found is None:
        return lines_of("start", "not predicted: nobody has published one of this engine with this loader")
    more = found.kernels_first.mid - found.kernels_later.mid
    parts = (
        ("engine", found.engine.mid, ""),
        ("weights", found.weights.mid, _if_mapped(rung)),
        (
            "kernels",
            found.kernels_later.mid,
            f" ({rough_duration(more)} more the first time)" if more else "",
        ),
        ("warm-up", found.warm_up.mid, ""),
    )
    return lines_of(
        "start",
        ", ".join(f"{name} {rough_duration(seconds)}{words}" for name, seconds, words in parts if seconds),
    )


def _start(rung: Rung) -> StartTime | None:
    return predicted_start(rung.candidate, rung.prediction.weights_bytes)


def _if_mapped(rung: Rung) -> str:
    """Time of the same weights if their files were mapped, as they are by default."""
    if rung.candidate.mmap:
        return ""
    times = loading_times(rung.prediction.weights_bytes, rung.candidate.shape.ranks)
    return f" (files read whole; mapped {rough_duration(times.mapped)})"
