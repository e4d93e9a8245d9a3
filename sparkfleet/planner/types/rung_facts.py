"""Facts beside the prediction of a rung: published runs, and prefill that is repeated."""

from __future__ import annotations

from sparkfleet.knowledge.published.figures import ComparedFigure
from sparkfleet.values import Value


class PublishedRuns(Value):
    """Published measurements of a combination: family of models, engine, method, format and nodes."""

    rows: int = 0
    sources: tuple[str, ...] = ()
    same: bool = False
    """False: of the nearest combination that somebody has published, if `rows` is not 0."""
    alone: float | None = None
    """tok/s of one request; None if that was not published, or of builds that store the weights in other bits, too."""
    figure: ComparedFigure | None = None
    """The same with its checkpoint, text and sources; None in plans of earlier releases, too."""
    together: ComparedFigure | None = None
    """Of as many requests together as the candidate is predicted for."""

    @property
    def exactly(self) -> float | None:
        """tok/s of one request of this checkpoint and text; None if it was not published, or only of another one."""
        return self.figure.tps if self.figure is not None and self.figure.is_alike else None


class RepeatedPrefill(Value):
    """Tokens that each turn of a conversation prefills again, because the prefix cache does not find it."""

    rule: str
    """Id of the rule that names the cause."""
    whole: bool
    """True if it is everything before the turn."""
    off: bool
    """True if a flag switches the cache off."""
    tokens: int
    """Tokens that are prefilled again."""
    follow_ups: float
    """Share of requests that are assumed to follow earlier ones."""
    ttft_ms: float
    """Predicted TTFT of a turn, its own prompt included."""
    cached_ttft_ms: float
    """The same if the cache found them."""

    @property
    def extra_ms(self) -> float:
        """The part of the TTFT that a cache would save."""
        return max(0.0, self.ttft_ms - self.cached_ttft_ms)
