"""The longest time that a healthy engine may take for a token. Pure."""

from __future__ import annotations

from sparkfleet.perf.prediction import Band, Prediction

PATIENCE_S = 3600.0
"""Upper limit, seconds: a client has given up by then."""
MARGIN = 2.0
"""Factor over the longest predicted silence: a prefill slows down with the length of the prompt before it."""
SLOWEST_PREFILL_TPS = 140.0
"""Prefill rate without a prediction: the lowest that was published (knowledge/measurements)."""
SLOWEST_DECODE_TPS = 2.0
"""Decode rate without a prediction: that of dense models of 70 B in 16 bits."""


def patience_s(
    context: int, concurrency: int, prediction: Prediction, *, steps: bool, proof_s: float
) -> float:
    """Longest silence of a healthy engine that owes a token, seconds.

    Args:
        context: the longest prompt, tokens.
        concurrency: requests at once.
        prediction: of its rates.
        steps: True if its counters move with every step: the longest silence is then one uninterrupted prefill. Otherwise
            they move when a request is finished, and it is the prefill of all requests and the longest answer.
        proof_s: the lower limit, seconds.
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
