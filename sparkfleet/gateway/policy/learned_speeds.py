"""Corrections of predicted speeds and lengths, learned from traffic.

A group that has answered little is corrected little. That would send everything to the first group that answered, if nothing
is predicted for either and both are faster than assumed: groups without a prediction begin at what others of their model
have shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

WEIGHT = 0.1
"""Weight of the newest observation, once there are many."""
PREDICTED = 2
"""Observations that a prediction counts for, so that the first ones correct it the most."""
FARTHEST = 8.0
"""Most that a speed is corrected by, either way: one odd request must not hide a group."""
ANSWER_TOKENS = 256.0
"""Tokens of an answer of a model that has given none yet."""


@dataclass(slots=True)
class _Learned:
    """A mean of observations that forgets."""

    value: float = 0.0
    seen: int = 0

    def see(self, found: float) -> None:
        self.seen += 1
        self.value += max(WEIGHT, 1 / self.seen) * (found - self.value)


class _Corrections:
    """Logarithms of measured over predicted seconds of one step."""

    def __init__(self) -> None:
        self._of: dict[str, _Learned] = {}
        self._common: dict[str, _Learned] = {}
        """Of all groups of a model without a prediction."""

    def factor(self, app: str, common: str) -> float:
        known = self._of.get(app) or self._common.get(common)
        return 1.0 if known is None else math.exp(known.value)

    def see(self, app: str, predicted_s: float, measured_s: float, common: str) -> None:
        if predicted_s <= 0 or measured_s <= 0:
            return
        found = _bounded(measured_s / predicted_s)
        begin = 0.0
        if common:
            shared = self._common.setdefault(common, _Learned())
            shared.see(found)
            begin = shared.value
        if app not in self._of:
            self._of[app] = _Learned(begin, PREDICTED)
        self._of[app].see(found)

    def begin(self, app: str, ratio: float) -> None:
        known = self._of.get(app)
        if known is None or known.seen <= PREDICTED:
            self._of[app] = _Learned(_bounded(ratio), PREDICTED)

    def forget(self, app: str) -> None:
        self._of.pop(app, None)

    def keep(self, apps: Set[str], models: Set[str]) -> None:
        self._of = {app: known for app, known in self._of.items() if app in apps}
        self._common = {model: known for model, known in self._common.items() if model in models}


def _bounded(ratio: float) -> float:
    most = math.log(FARTHEST)
    return min(most, max(-most, math.log(ratio)))


class LearnedSpeeds:
    """Measured over predicted seconds of each group, and the mean length of the answers of each model.

    `common` is the model of a group for which nothing is predicted, "" for one with a prediction.
    """

    def __init__(self) -> None:
        self._prefill, self._decode = _Corrections(), _Corrections()
        self._answers: dict[str, float] = {}

    def factors(self, app: str, common: str = "") -> tuple[float, float]:
        """Measured over predicted seconds of a group: to the first token, and per further token."""
        return self._prefill.factor(app, common), self._decode.factor(app, common)

    def saw_prefill(self, app: str, predicted_s: float, measured_s: float, common: str = "") -> None:
        """Learns from a first token. `predicted_s`: without corrections."""
        self._prefill.see(app, predicted_s, measured_s, common)

    def saw_decode(self, app: str, predicted_s: float, measured_s: float, common: str = "") -> None:
        """Learns from the rest of an answer. `predicted_s`: without corrections."""
        self._decode.see(app, predicted_s, measured_s, common)

    def answer_tokens(self, model: str, most: int) -> float:
        """Tokens that an answer will probably have. `most`: the request's own limit; 0: none."""
        usual = self._answers.get(model, ANSWER_TOKENS)
        return min(usual, most) if most else usual

    def saw_answer(self, model: str, tokens: int) -> None:
        """Learns from the length of an answer."""
        usual = self._answers.get(model, ANSWER_TOKENS)
        self._answers[model] = usual + WEIGHT * (tokens - usual)

    def saw_start(self, app: str, ratio: float) -> None:
        """Begins at the decode speed of a group's start, measured over predicted, until traffic has shown another."""
        self._decode.begin(app, 1 / ratio)

    def forget(self, app: str) -> None:
        """Forgets the corrections of a group: its predictions have changed."""
        self._prefill.forget(app)
        self._decode.forget(app)

    def keep(self, apps: Iterable[str], models: Iterable[str]) -> None:
        """Forgets all other groups and models."""
        there, named = frozenset(apps), frozenset(models)
        self._prefill.keep(there, named)
        self._decode.keep(there, named)
        self._answers = {model: mean for model, mean in self._answers.items() if model in named}
