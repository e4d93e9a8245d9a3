"""Reference text of the canary, and statistics of token probabilities. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

TEXT = (
    "A rail is one half of a QSFP cable: one network device and one RoCE device in its own subnet."
    " One cable is two rails, and both are needed for the full bandwidth."
)
"""Plain English that any language model finds likely, and that the built-in models have learnt."""
OPENING = "A rail is one half of a QSFP cable:"
"""The beginning that a model has to continue."""
OWN_TOKENS = 48
ENOUGH_TOKENS = 8
"""Fewest tokens that allow a conclusion."""
TIE = 1e-3
"""Log-probabilities that differ by less are equal."""


class Score(NamedTuple):
    """Natural logarithms of probabilities at one place of a token sequence."""

    own: float
    """Of the token at that place."""
    best: float
    """Of the likeliest one."""


def perplexity(scores: Sequence[Score]) -> float | None:
    """exp of the mean negative log-probability; None for too few tokens."""
    if len(scores) < ENOUGH_TOKENS:
        return None
    mean = -sum(score.own for score in scores) / len(scores)
    return math.exp(min(mean, 700.0) if not math.isnan(mean) else 700.0)


def agreement(scores: Sequence[Score]) -> float | None:
    """Share of tokens that are the likeliest; None for too few tokens."""
    if len(scores) < ENOUGH_TOKENS:
        return None
    return sum(score.own >= score.best - TIE for score in scores) / len(scores)
