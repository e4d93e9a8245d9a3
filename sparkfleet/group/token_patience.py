"""The longest time that an engine may owe a token and be well. Pure."""

from __future__ import annotations

from sparkfleet.perf.prediction import Band, Prediction

PATIENCE_S = 3600.0
"""The most: whoever waits that long for an answer has given up."""
MARGIN = 2.0
"""Over the longest silence that is predicted: a prefill grows slower with what lies before it."""
SLOWEST_PREFILL_TPS = 140.0
"""Where nothing is predicted: the least that was published (knowledge/measurements)."""
SLOWEST_DECODE_TPS = 2.0
"""The same of one answer: what dense models of 70 B in 16 bits come to."""


def patience_s(
    context: int, concurrency: int, prediction: Prediction, *, steps: bool, proof_s: float
) -> float:
    """Longest silence of a healthy engine that owes a token, seconds.

    Args:
        context: the longest prompt, tokens.
        concurrency: requests at once.
        prediction: of its rates.
        steps: whether its figures move with every step: then the longest silence is a prefill in one piece. Otherwise they
            move when a request is finished, and it is everybody's prefill and the longest answer.
        proof_s: the least, seconds.
    """
    prefill_s = context / _least(prediction.prefill_tps, SLOWEST_PREFILL_TPS)
    if steps:
        return max(proof_s, MARGIN * prefill_s)
    alone = _least(prediction.decode_tps_per_request, SLOWEST_DECODE_TPS)
    together = _least(prediction.decode_tps_aggregate, alone) / (prediction.concurrency or 1)
    longest_s = MARGIN * (concurrency * prefill_s + context / min(alone, together))
    return min(PATIENCE_S, max(proof_s, longest_s))


def _least(band: Band | None, unknown: float) -> float:
    return band.low if band is not None and band.low > 0 else unknown
