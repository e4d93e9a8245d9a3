"""The user's own measurements beat the model: the nearest one corrects the prediction, the further away the less.

No table contains this box with its drivers and its image. One measurement shows most of the difference: an error of the
model at one workload is mostly an error at similar workloads, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkfleet.perf.latency.latency_model import LatencyModel
from sparkfleet.perf.latency.rates import Rates, rates
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.prediction import Band, Provenance
from sparkfleet.perf.workload import Workload
from sparkfleet.values import Value

REPEATS = 0.12
"""Half width (log) between two boots of the same box with the same settings (boot to boot ±15 %: r0b0tlab, colonel-otto)."""
DECODING = ("decode_tps_per_request", "decode_tps_aggregate")
SAME_PREFILL = 2.0
"""Doublings of what is prefilled beyond which times to the first token have nothing to do with each other."""
REACH = 2.0
"""Doublings of concurrency or context over which a measurement loses two thirds of its weight."""


class Point(Value):
    """One measurement on the user's own box, of the same setup. Rates in tok/s, None if not measured."""

    workload: Workload
    when: str = ""
    """Date, for the explanation."""
    ttft_ms: float | None = None
    prefill_tps: float | None = None
    decode_tps_per_request: float | None = None
    decode_tps_aggregate: float | None = None
    accepted: float | None = None
    """Tokens per step of its own text; None without speculation, or if they were not counted."""


class LocalMeasurement(Value):
    """A measurement and the setup it was made with, in the words of plans."""

    model: str
    """As the deployment names it."""
    engine: str
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    method: str = "none"
    """Speculative method."""
    k: int = 0
    """Draft tokens."""
    release: str = ""
    """Engine version or patched build as factors know it; "" means any."""
    point: Point

    def of(self, setup: SpeedConfig) -> bool:
        """True if it was made with this setup of its model."""
        same = (self.engine, self.tp, self.pp, self.dcp, self.method, self.k)
        return same == (setup.engine, setup.tp, setup.pp, setup.dcp, setup.method, setup.k) and (
            self.release in ("", setup.release)
        )


def anchored(
    model: LatencyModel, workload: Workload, points: Sequence[Point], usual: LatencyModel | None = None
) -> Rates:
    """The prediction, corrected by the nearest of `points` that measured each rate. Without points: the prediction.

    Args:
        model: of the setup.
        workload: that is predicted.
        points: measurements of the setup.
        usual: the same with published acceptance, if `model` has that of a deployment's own text: the requests of a
            measurement have other texts. None: `model`.
    """
    plain = rates(model, workload)
    changes: dict[str, Band] = {}
    for name in ("ttft_ms", "prefill_tps", "decode_tps_per_request", "decode_tps_aggregate"):
        band: Band | None = getattr(plain, name)
        nearest = min(
            (point for point in points if _speaks_of(point, name, workload)),
            key=lambda point: _apart(name, workload, point.workload),
            default=None,
        )
        if band is not None and nearest is not None:
            changes[name] = _corrected(band, name, usual or model, workload, nearest)
    return plain.model_copy(update=changes)


def _speaks_of(point: Point, name: str, workload: Workload) -> bool:
    """True if a point measured that rate. The latency of one word is no evidence for long prompts, nor the reverse."""
    prefilled = _doublings(workload.prefill + 256, point.workload.prefill + 256)
    return getattr(point, name) is not None and (name in DECODING or prefilled <= SAME_PREFILL)


def distance(a: Workload, b: Workload) -> float:
    """Doublings between two workloads: of concurrency, of context, of what is prefilled; one for other content."""
    return _decoding(a, b) + 0.5 * _doublings(a.prefill + 256, b.prefill + 256)


def _apart(name: str, a: Workload, b: Workload) -> float:
    """The distance that matters to a rate: what one request prefills is over when its tokens come."""
    alone = name in DECODING and a.concurrency == b.concurrency == 1
    return _decoding(a, b) if alone else distance(a, b)


def _decoding(a: Workload, b: Workload) -> float:
    apart = _doublings(a.concurrency, b.concurrency) + 0.5 * _doublings(a.context + 1024, b.context + 1024)
    return apart + (a.content != b.content)


def text_of(point: Point, model: LatencyModel) -> float:
    """Tokens per step of a measurement's own text as a multiple of the published ones; 1 if they are not known."""
    return 1.0 if point.accepted is None else point.accepted / model.yielded(point.workload)


def _doublings(x: float, y: float) -> float:
    return abs(math.log2(x / y))


def _corrected(band: Band, name: str, model: LatencyModel, workload: Workload, point: Point) -> Band:
    there: Band | None = getattr(rates(model, point.workload), name)
    value: float = getattr(point, name)
    away = _apart(name, workload, point.workload)
    if there is None or value <= 0:
        return band
    trust = math.exp(-away / REACH)
    half = REPEATS + (1 - trust) * math.log(band.high / band.mid)
    # Other texts have other tokens per step: what holds for them is the time of a step.
    text = text_of(point, model) if away and name in DECODING else 1.0
    middle = band.mid * (value / (there.mid * text)) ** trust
    return Band(
        low=middle * math.exp(-half),
        mid=middle,
        high=middle * math.exp(half),
        provenance=Provenance.MEASURED if away == 0 else Provenance.CALIBRATED,
        basis=f"measured here{' ' + point.when if point.when else ''}: {value:g} at {point.workload.concurrency} at once",
    )
