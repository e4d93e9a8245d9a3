"""Acceptance of a draft as the engines of this fleet have counted it on a deployment's own requests.

Published acceptance is that of a usual kind of text. What one draft yields depends on the text more than on anything else:
one and the same had 2.8 to 5.4 accepted tokens on code and 1.25 to 1.52 on German prose (hasso5703, issue 12).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sparkfleet.perf.latency.acceptance import CEILING, tokens_per_step
from sparkfleet.perf.prediction import Speculation
from sparkfleet.values import Value

ENOUGH_STEPS = 6_000
"""Steps from which counted acceptance replaces the published one. Steps of one answer are alike, so answers count: one has
about 250 steps, and 25 % lie between the tokens per step of texts of one kind (`content=prose` in published/factors.yaml has
a spread of 0.256). The mean of 24 answers is within 10 % in 19 of 20 cases: 1.96 × 25 % / √24."""
CLEARLY = 1.15
"""Times as fast from which on another depth is chosen or advised: of 10 published pairs of depths for which it would have
been 8 were faster (tests/accuracy/test_other_depths.py)."""
RARELY = 0.05
"""Share of steps with the larger depth of two below which nothing is known of that depth's own positions."""
SAME = 0.02
"""Share by which the sum over positions may differ from the accepted tokens, which were read with them."""


class LocalAcceptance(Value):
    """Counted acceptance of one draft with one model."""

    model: str
    """As the deployment names it."""
    method: str
    draft: str | None = None
    tokens: int
    """Draft tokens per step with which it was counted."""
    steps: int
    """Verifications of one request's draft each that it rests on."""
    chances: tuple[float, ...]
    """Chance that the first draft tokens are all accepted, by their number from 1; falls from one to the next."""

    def of(self, speculation: Speculation) -> bool:
        """True if it is this draft, whatever its depth. A beam of it is predicted as a chain, with published acceptance as
        with this."""
        return (self.method, self.draft) == (speculation.method, speculation.draft)

    def tokens_per_step(self, k: int) -> float:
        """Expected tokens of one step with `k` draft tokens: the accepted ones and one more.

        Beyond the depth that was counted each further token is accepted as often as the last one that was. Over 232 pairs of
        depths that a source published of one draft, text and load, one depth gives the other within 4.4 % (median), and
        published acceptance for the kind of text within 14.7 % (tests/accuracy/test_other_depths.py).
        """
        known = self.chances[:k]
        last = known[-1] if known else 1.0
        before = known[-2] if len(known) > 1 else 1.0
        again = min(CEILING, last / before) if before else 0.0
        beyond = (last * again**number for number in range(1, k - len(known) + 1))
        return 1.0 + sum(known) + sum(beyond)


def chances_of(
    speculation: Speculation,
    *,
    steps: float,
    proposed: float,
    accepted: float,
    by_position: Sequence[float] = (),
) -> tuple[float, ...]:
    """Chance that the first draft tokens are all accepted, by their number from 1, of an engine's counters.

    With a depth by load the proposed tokens give the share of steps that had the larger one. Without counts by position each
    further token has the same chance.

    Args:
        speculation: as the engine was started.
        steps: verifications of one request's draft each, more than 0.
        proposed: draft tokens in them.
        accepted: those of them that were accepted.
        by_position: the same by their position in the draft, from the first; () if the engine does not count them.
    """
    deep, shallow = speculation.tokens, speculation.busy or speculation.tokens
    share = 1.0
    if shallow < deep:
        share = min(1.0, max(0.0, (proposed / steps - shallow) / (deep - shallow)))
    if share < RARELY:
        deep, share = shallow, 1.0
    if len(by_position) >= deep and abs(sum(by_position) - accepted) <= SAME * max(1.0, accepted):
        tried = (steps * (1.0 if at < shallow else share) for at in range(deep))
        found = (min(1.0, counted / of) for counted, of in zip(by_position, tried, strict=False))
        return tuple(itertools.accumulate(found, min))
    chance = _chance(1.0 + accepted / steps, deep, shallow, share)
    return tuple(chance**number for number in range(1, deep + 1))


def _chance(mean: float, deep: int, shallow: int, share: float) -> float:
    """Chance of one more token to be accepted with which a step has `mean` tokens, found by halving."""
    low, high = 0.0, CEILING
    for _ in range(40):
        middle = (low + high) / 2
        found = share * tokens_per_step(middle, deep) + (1 - share) * tokens_per_step(middle, shallow)
        low, high = (middle, high) if found < mean else (low, middle)
    return low
