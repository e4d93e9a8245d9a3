"""Speculators per model and the tokens per step they were measured at: `speculators.yaml`, checked on load."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from statistics import median
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries, pairs
from sparkfleet.knowledge.models.model_names import matches
from sparkfleet.knowledge.published.left_out import left_out_families
from sparkfleet.specs.deployment import Method, PlannedEngine
from sparkfleet.specs.model_name import base_name, model_name
from sparkfleet.values import Value

Content = Literal["mixed", "code", "prose", "structured", "math", "agent", "counting"]
"""Kinds of answers. "counting" (numbers in a row) is an upper bound, not a workload."""

Tokens = Annotated[int, Field(ge=1, le=64)]
Rate = Annotated[float, Field(ge=0, le=1)]


class Acceptance(Value):
    """Acceptance of the draft tokens by a target, in one set of measurements."""

    content: Content
    tokens: Tokens | None
    """Draft tokens per step; None if it was not published."""
    length: Annotated[float, Field(ge=1)] | None = None
    """Tokens per step, the target's own included."""
    rate: Rate | None = None
    """Accepted share of the drafted tokens."""
    low: float | None = None
    high: float | None = None
    """Range of the given one; None: one number was published."""
    engine: PlannedEngine | None = None
    quant: str | None = None
    note: str = ""
    sources: Sources
    date: Date

    @model_validator(mode="after")
    def _one_of_both(self) -> Acceptance:
        if (self.length is None) == (self.rate is None):
            raise ValueError("expected either length or rate")
        if self.rate is not None and self.tokens is None:
            raise ValueError("a rate needs tokens")
        given = self.length if self.rate is None else self.rate
        assert given is not None
        if (
            not (self.low if self.low is not None else given)
            <= given
            <= (self.high if self.high is not None else given)
        ):
            raise ValueError(f"expected low <= {given:g} <= high")
        return self

    @property
    def tokens_per_step(self) -> tuple[float, float, float]:
        """Tokens that a step yields, the target's own included: low, mid, high."""
        if self.rate is None:
            assert self.length is not None
            return (self._low(self.length), self.length, self._high(self.length))
        assert self.tokens is not None
        low, high = self._low(self.rate), self._high(self.rate)
        return (1 + low * self.tokens, 1 + self.rate * self.tokens, 1 + high * self.tokens)

    def _low(self, value: float) -> float:
        return value if self.low is None else self.low

    def _high(self, value: float) -> float:
        return value if self.high is None else self.high


class Gain(Value):
    """Decode speed with speculation over decode speed without, on the same box and weights."""

    tokens: Tokens | None
    concurrency: Annotated[int, Field(ge=1)]
    ratio: Annotated[float, Field(gt=0)]
    engine: PlannedEngine
    quant: str
    note: str = ""
    sources: Sources
    date: Date


class Depth(Value):
    """Fastest number of draft tokens per step."""

    alone: Tokens
    busy: Tokens | None = None
    busy_from: Annotated[int, Field(ge=2)] | None = None
    """Requests at once from which `busy` is better."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Depth:
        if (self.busy is None) != (self.busy_from is None):
            raise ValueError("expected busy and busy_from together")
        if self.busy is not None and self.busy > self.alone:
            raise ValueError("expected busy <= alone: engines make room for the drafts of one request alone")
        return self

    def at(self, concurrency: int) -> int:
        """The depth for that many requests at once."""
        busy = self.busy is not None and self.busy_from is not None and concurrency >= self.busy_from
        return self.busy if busy and self.busy is not None else self.alone


class Speculator(Value):
    """A way to draft for a family of checkpoints."""

    id: str
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Globs on the model id, letter case aside."""
    method: Method
    engines: Annotated[tuple[PlannedEngine, ...], Field(min_length=1)]
    head: Literal["checkpoint", "separate", "none"]
    """Place of the drafting weights. "checkpoint": see its weight map, as quantisers drop heads."""
    draft: str | None = None
    """Hub id of a separate draft model; None if its name was not published."""
    license: str | None = None
    """Licence of the draft, by the Hub's name for it; None if its card names none, or the head is the checkpoint's own."""
    gb: Annotated[float, Field(gt=0)] | None = None
    """Weights of the draft, GB (1e9 bytes); None if that is not known."""
    file: str = ""
    """The draft's file in its repository, for a draft in GGUF format whose name is published; "": as usual, by its tag."""
    since: Annotated[tuple[tuple[PlannedEngine, str], ...], BeforeValidator(pairs)] = ()
    """First release of an engine that loads this draft model, if the method alone does not decide it."""
    proposed: bool = True
    """True if plans consider it by themselves. False: without measurements on a Spark; a deployment may name it."""
    tokens: Depth | None = None
    acceptance: tuple[Acceptance, ...] = ()
    gains: tuple[Gain, ...] = ()
    note: str = ""
    sources: Sources
    date: Date

    @model_validator(mode="after")
    def _draft_is_separate(self) -> Speculator:
        if self.draft is not None and self.head != "separate":
            raise ValueError("a draft is only named if head is separate")
        if self.draft is None and (self.license is not None or self.gb is not None):
            raise ValueError("license and gb are those of a named draft")
        if not self.proposed and self.draft is None:
            raise ValueError("proposed: false is for a named draft, which a deployment can name")
        return self

    def serves(self, model: str) -> bool:
        """True if `model` is one of its targets."""
        return matches(model, self.targets)


class Speculators(Value):
    """Contents of the file, in its order."""

    speculators: UniqueEntries[Speculator]


SPECULATORS = DataFile("models/speculators.yaml", Speculators)


def speculators_of(model: str, engine: str | None = None) -> tuple[Speculator, ...]:
    """Speculators that plans consider for `model`, on one engine or on any."""
    return tuple(
        one
        for one in SPECULATORS.content.speculators
        if one.proposed and one.serves(model) and (engine is None or engine in one.engines)
    )


def unmeasured_draft(model: str, engine: str, method: str) -> Speculator | None:
    """The first published draft of a method that plans do not propose by themselves; None if there is none."""
    for one in SPECULATORS.content.speculators:
        if not one.proposed and one.method == method and engine in one.engines and one.serves(model):
            return one
    return None


class PublishedDrafting(NamedTuple):
    """Published gains and acceptance of a method with one model."""

    gain: float | None
    """Rate with drafts over that without, on one box, under about the same load."""
    length: float | None
    """Tokens per step, the target's own included, for the same text and number of draft tokens."""


def drafting_published(
    model: str, engine: PlannedEngine, method: Method, tokens: int, *, requests: int, content: str
) -> PublishedDrafting:
    """Medians of published figures, without upper bounds (counting).

    Args:
        model: Hub id of the target.
        engine: the engine.
        method: the engine's name for it.
        tokens: draft tokens per step.
        requests: requests at once.
        content: kind of text.
    """
    if left_out_families():
        return PublishedDrafting(None, None)
    return _drafting_published(model, engine, method, tokens, requests=requests, content=content)


@lru_cache(maxsize=1024)
def _drafting_published(
    model: str, engine: PlannedEngine, method: Method, tokens: int, *, requests: int, content: str
) -> PublishedDrafting:
    known = [one for one in speculators_of(model, engine) if one.method == method]
    gains = [
        gain.ratio
        for one in known
        for gain in one.gains
        if gain.engine == engine
        and gain.tokens in (None, tokens)
        and max(gain.concurrency, requests) <= NEAR * min(gain.concurrency, requests)
        and "counting" not in gain.note
    ]
    lengths = [
        row.tokens_per_step[1]
        for one in known
        for row in one.acceptance
        if row.engine in (None, engine) and row.tokens == tokens and row.content == content
    ]
    return PublishedDrafting(median(gains) if gains else None, median(lengths) if lengths else None)


NEAR = 1.5
"""Largest ratio of requests at once between loads that are about the same."""


@lru_cache(maxsize=256)
def speculator_with(draft: str) -> Speculator | None:
    """The entry of a draft by its Hub id, letter case aside; None if it is not known.

    Of a GGUF draft with another tag than the published one it has neither size nor file.
    """
    wanted = model_name(draft)
    for one in SPECULATORS.content.speculators:
        known = model_name(one.draft) if one.draft is not None else None
        if known is not None and known.base.lower() == wanted.base.lower():
            is_same = known.tag.lower() == (wanted.tag or known.tag).lower()
            return one if is_same else one.model_copy(update={"gb": None, "file": ""})
    return None


def sized_draft(model: str, method: Method) -> Speculator | None:
    """The first separate draft of a method for `model` whose size is published, whether plans propose it or not."""
    for one in SPECULATORS.content.speculators:
        if one.method == method and one.gb is not None and one.serves(model):
            return one
    return None


_LIKE = 0.85
"""Similarity (difflib) from which on a name is taken to mean another: a wrong or missing letter, or another owner."""


@lru_cache(maxsize=256)
def draft_meant(name: str) -> str | None:
    """The published draft that is like a name: the same in another letter case, or the nearest; None if it is published."""
    name = base_name(name)
    drafts = (one.draft for one in SPECULATORS.content.speculators if one.draft is not None)
    known = {base_name(one).lower(): one for one in drafts}
    if name in map(base_name, known.values()):
        return None
    return next((known[one] for one in get_close_matches(name.lower(), known, n=1, cutoff=_LIKE)), None)


@lru_cache(maxsize=256)
def bundles(model: str, method: str) -> bool:
    """True if the weights of `model` are known to contain the heads of that method."""
    return any(one.method == method and one.head == "checkpoint" for one in speculators_of(model))
