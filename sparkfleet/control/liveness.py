"""Whether an engine still moves. Pure: `/health` says 200 for minutes after a peer of a group has died."""

from __future__ import annotations

from sparkfleet.planning.plan import Band, Prediction
from sparkfleet.spec.timeouts import Timeouts

PATIENCE_S = 3600.0
"""The most: whoever waits that long for an answer has given up."""
MARGIN = 2.0
"""Over the longest silence that is predicted: a prefill grows slower with what lies before it."""
SLOWEST_PREFILL_TPS = 140.0
"""Where nothing is predicted: the least that was published (knowledge/measurements)."""
SLOWEST_DECODE_TPS = 2.0
"""The same of one answer: what dense models of 70 B in 16 bits come to."""


class Liveness:
    """Watches figures of an engine over time. What is asked of it because it is suspect does not count as work.

    Args:
        timeouts: how long nothing may move while it has work in hand (`stuck_s`), and how long it may have none, by its own
            figures, before it has to show that it would take some (`idle_s`).
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._stuck_s = timeouts.stuck_s
        self._idle_s = timeouts.idle_s
        self._figures: tuple[float, ...] | None = None
        self._busy = False
        self._suspect = False
        self._moved_at: float | None = None

    def is_suspect(self, now: float, requests: int, figures: tuple[float, ...] | None) -> bool:
        """Take a reading; True where a request for one token has to show whether the engine lives.

        Args:
            now: seconds of any clock that only goes forward.
            requests: that run or wait in the engine.
            figures: any of them moves when it works; None where its metrics did not answer.
        """
        moved = figures is not None and figures != self._figures
        rested = self._moved_at is None or now - self._moved_at > self._stuck_s
        began = requests > 0 and not self._busy and not self._suspect and rested
        if self._moved_at is None or moved or began:
            self._moved_at, self._suspect = now, False
        if figures is not None:
            self._figures, self._busy = figures, requests > 0
        limit_s = self._idle_s if figures is not None and not requests else self._stuck_s
        self._suspect = self._suspect or now - self._moved_at >= limit_s
        return self._suspect

    def proved(self, now: float) -> None:
        """It has generated a token when it was asked for one."""
        self._moved_at, self._suspect = now, False


def patience_s(
    context: int, concurrency: int, prediction: Prediction, *, steps: bool, proof_s: float
) -> float:
    """How long an engine may owe a token while nothing of it moves and it is well, seconds.

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
