"""Physical gate: finds measurements that need more bytes or FLOPs per second than the machines have.

Such a figure is not fitted: its prompt was cached, speculation was on, tokens were counted twice, or its row has another
model or format than the one that ran. Pure.
"""

from __future__ import annotations

from sparkfleet.accuracy.rows import PublishedCase
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.perf.latency.roofline_terms import touched
from sparkfleet.perf.latency.step_costs import costs

NOMINAL_GB_PER_S = 273.0
"""Memory bandwidth of a Spark by its data sheet (docs.nvidia.com/dgx/dgx-spark, hardware overview); 240 are measured."""
NOMINAL_TFLOPS = {"bf16": 125.0, "fp8": 250.0, "fp4": 500.0}
"""Dense peaks by the format of a matrix product: half of the petaFLOP with sparsity of the data sheet in FP4, and half for
each doubling of the bits."""


def impossible(case: PublishedCase) -> dict[str, str]:
    """Figures of a case that are impossible on its machines, each with the reason. Speculation exempts decode rates."""
    found: dict[str, str] = {}
    for metric, value in case.measured:
        reason = (
            _decode(case, metric, value) if metric.startswith("decode") else _prefill(case, metric, value)
        )
        if reason:
            found[metric] = reason
    return found


def possible(case: PublishedCase) -> PublishedCase:
    """The case without its impossible figures."""
    wrong = impossible(case)
    if not wrong:
        return case
    return case.model_copy(update={"measured": tuple(one for one in case.measured if one[0] not in wrong)})


def _decode(case: PublishedCase, metric: str, tps: float) -> str:
    """A step without draft tokens reads at least the dense weights and the experts of its tokens once."""
    if case.speculative:
        return ""
    batch = min(max(1.0, case.workload.concurrency / case.replicas), case.setup.max_running or float("inf"))
    steps_per_s = tps if metric == "decode_tps_per_request" else tps / batch / case.replicas
    work = costs(case.setup)
    # One request at once at least: requests of a batch may pick the same experts.
    read = (work.dense + work.experts * touched(work.pick, 1.0)) * case.setup.tp
    needed = read * steps_per_s / case.setup.pp / 1e9
    has = NOMINAL_GB_PER_S * case.setup.tp
    if needed <= has:
        return ""
    return (
        f"needs {needed:.0f} GB/s of weights; the machines have {case.setup.tp} × {NOMINAL_GB_PER_S:.0f} GB/s"
    )


def _prefill(case: PublishedCase, metric: str, value: float) -> str:
    """Every token of a prompt passes all active parameters but the head's."""
    setup, tokens = case.setup, case.workload.prefill
    ranks = setup.tp * setup.pp * case.replicas
    each = 2 * costs(setup).prompt * setup.tp
    form = physics().formats[setup.format]
    peak = NOMINAL_TFLOPS["bf16" if setup.kernel == "marlin" else form.compute] * ranks
    tps = (tokens / (value / 1000) if tokens else 0.0) if metric == "ttft_ms" else value
    needed = each * tps / 1e12
    return f"needs {needed:.0f} TFLOPS; the machines have {peak:.0f}" if needed > peak else ""
