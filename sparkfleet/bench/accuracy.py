"""How far predictions lie from published measurements: `sparkfleet accuracy ROWS.csv`."""

from __future__ import annotations

from sparkfleet.bench.rows import Case
from sparkfleet.knowledge.factors import Factors
from sparkfleet.planning.plan import Band
from sparkfleet.planning.rates import model_of, rates


def predict(case: Case, factors: Factors) -> dict[str, Band | None]:
    """What the planner would have said about a case, by metric. None where it says nothing."""
    model = model_of(case.setup, factors)
    work = case.workload
    if case.replicas > 1:
        work = work.model_copy(update={"concurrency": max(1, -(-work.concurrency // case.replicas))})
    found = rates(model, work)
    prefill = found.prefill_tps
    if case.per_request_prefill and found.ttft_ms is not None:
        prefill = _scaled(found.ttft_ms, lambda ms: 1000 * work.prefill / ms)
    elif prefill is not None:
        prefill = _scaled(prefill, lambda tps: tps * case.replicas)
    return {
        "decode_tps_per_request": found.decode_tps_per_request,
        "decode_tps_aggregate": _scaled(found.decode_tps_aggregate, lambda tps: tps * case.replicas),
        "prefill_tps": prefill,
        "ttft_ms": found.ttft_ms,
    }


def _scaled(band: Band, change: object) -> Band:
    values = sorted(change(x) for x in (band.low, band.mid, band.high))  # type: ignore[operator]
    return band.model_copy(update={"low": values[0], "mid": values[1], "high": values[2]})
