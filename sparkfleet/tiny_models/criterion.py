"""The criterion that ends a training, and the facts of a built checkpoint. Pure; needs no torch."""

from __future__ import annotations

from typing import Literal

from sparkfleet.values import Value

Measure = Literal["text_perplexity", "own_perplexity", "own_agreement", "drafts_agreed"]

WORDS: dict[Measure, str] = {
    "text_perplexity": "perplexity of the known text",
    "own_perplexity": "perplexity of its own answer",
    "own_agreement": "own tokens chosen again",
    "drafts_agreed": "drafts that its model would choose",
}
AT_LEAST: frozenset[Measure] = frozenset({"own_agreement", "drafts_agreed"})
"""Measures of which more is better; for the others less is better."""


class Quality(Value):
    """Measures of a model as it is saved, in half precision. None: not measured, or too few tokens."""

    text_perplexity: float | None = None
    """Perplexity of the canary's known text."""
    own_perplexity: float | None = None
    """Perplexity of the model's own greedy answer to the canary's opening, by the sampled tokens."""
    own_agreement: float | None = None
    """Share of those tokens that the model also chooses if it computes in half precision, so that a choice that
    rounding can change does not count."""
    drafts_agreed: float | None = None
    """Share of a head's first choices that are also its model's."""


class Criterion(Value):
    """Limits that a checkpoint has to meet. None: no limit.

    The canary's own limits (`group/canary.py`: 1000, 50 and 0.6; half of the lowest published acceptance for drafts) are far
    wider, so that a checkpoint that meets its criterion passes on any processor.
    """

    text_perplexity: float | None = None
    own_perplexity: float | None = None
    own_agreement: float | None = None
    drafts_agreed: float | None = None

    def limits(self) -> dict[Measure, float]:
        """The limits that are set; progress reports the first."""
        return {name: limit for name in WORDS if (limit := getattr(self, name)) is not None}

    def missed(self, quality: Quality) -> tuple[str, ...]:
        """The limits that `quality` does not meet, as text; () if it meets all."""
        return tuple(
            words_of(name, getattr(quality, name), limit)
            for name, limit in self.limits().items()
            if not _is_met(name, getattr(quality, name), limit)
        )


class BuildFacts(Value):
    """Facts about a built checkpoint; stored in its directory."""

    name: str
    steps: int = 0
    """Steps of training; 0 for a checkpoint without training."""
    cpu_s: float = 0.0
    """Processor time of the build, all threads, without its base model's."""
    weights: int = 0
    quality: Quality = Quality()


def words_of(name: Measure, value: float | None, limit: float) -> str:
    """A measure beside its limit, e.g. "perplexity of the known text 3.1 (at most 6)"."""
    side = "at least" if name in AT_LEAST else "at most"
    return f"{WORDS[name]} {'unknown' if value is None else format(value, '.3g')} ({side} {limit:g})"


def _is_met(name: Measure, value: float | None, limit: float) -> bool:
    if value is None:
        return False
    return value >= limit if name in AT_LEAST else value <= limit
