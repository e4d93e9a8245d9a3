"""Corrections of predicted speeds and lengths, learned from traffic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WEIGHT = 0.1
"""Weight of the newest observation."""
FARTHEST = 8.0
"""Most that a speed is corrected by, either way: one odd request must not hide a group."""
ANSWER_TOKENS = 256.0
"""Tokens of an answer of a model that has given none yet."""


@dataclass(slots=True)
class _Factors:
    prefill: float = 0.0
    """Logarithm of measured over predicted seconds."""
    decode: float = 0.0


class LearnedSpeeds:
    """Measured over predicted seconds of each group, and the mean length of the answers of each model."""

    def __init__(self) -> None:
        self._of: dict[str, _Factors] = {}
        self._answers: dict[str, float] = {}

    def factors(self, app: str) -> tuple[float, float]:
        """`prefill_factor` and `decode_factor` of a group."""
        known = self._of.get(app)
        return (1.0, 1.0) if known is None else (math.exp(known.prefill), math.exp(known.decode))

    def prefill_factor(self, app: str) -> float:
        """Measured over predicted seconds to the first token."""
        known = self._of.get(app)
        return math.exp(known.prefill) if known is not None else 1.0

    def decode_factor(self, app: str) -> float:
        """Measured over predicted seconds per further token."""
        known = self._of.get(app)
        return math.exp(known.decode) if known is not None else 1.0

    def saw_prefill(self, app: str, predicted_s: float, measured_s: float) -> None:
        """Learns from a first token. `predicted_s`: without corrections."""
        known = self._of.setdefault(app, _Factors())
        known.prefill = _nearer(known.prefill, predicted_s, measured_s)

    def saw_decode(self, app: str, predicted_s: float, measured_s: float) -> None:
        """Learns from the rest of an answer. `predicted_s`: without corrections."""
        known = self._of.setdefault(app, _Factors())
        known.decode = _nearer(known.decode, predicted_s, measured_s)

    def answer_tokens(self, model: str, most: int) -> float:
        """Tokens that an answer will probably have. `most`: the request's own limit; 0: none."""
        usual = self._answers.get(model, ANSWER_TOKENS)
        return min(usual, most) if most else usual

    def saw_answer(self, model: str, tokens: int) -> None:
        """Learns from the length of an answer."""
        usual = self._answers.get(model, ANSWER_TOKENS)
        self._answers[model] = usual + WEIGHT * (tokens - usual)

    def keep(self, apps: Iterable[str], models: Iterable[str]) -> None:
        """Forgets all other groups and models."""
        there, named = frozenset(apps), frozenset(models)
        self._of = {app: known for app, known in self._of.items() if app in there}
        self._answers = {model: mean for model, mean in self._answers.items() if model in named}


def _nearer(known: float, predicted_s: float, measured_s: float) -> float:
    if predicted_s <= 0 or measured_s <= 0:
        return known
    most = math.log(FARTHEST)
    seen = min(most, max(-most, math.log(measured_s / predicted_s)))
    return known + WEIGHT * (seen - known)
