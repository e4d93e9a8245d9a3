"""Matches rules against a context and folds their effects. Pure.

Not knowing is not guilt. A rule whose conditions hold is *certain*; one whose conditions could hold, were some fact known,
is *possible*. What a finding may do:

                      certain     possible
    reject            yes         no: listed as a doubt, and the ladder and the canary decide
    penalise          yes         no
    require           yes         only against garbage, and only if nothing but versions is unknown (see `counts`)
    warn              yes         listed as a doubt

A rule of one source that a newer source contradicts only warns, with both sources (`Rule.effect`).

What only releases can have that are older than the architecture of the model is not possible on a build of it.

The exception is cheap insurance: the combination is the one that was seen to compute wrong results, and no version excludes
it. The requirement costs speed at worst; leaving it out costs silent errors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from sparkfleet.knowledge.engines.engine_models import earliest
from sparkfleet.knowledge.rules.rule_context import FACTS, FactKind, RuleContext, parse_flags
from sparkfleet.knowledge.rules.rules import (
    SEVERITIES,
    Metric,
    Penalise,
    Reject,
    Require,
    Rule,
    RuleLimits,
    Warn,
    planning_rules,
)
from sparkfleet.knowledge.versions import Truth, parse_version
from sparkfleet.planner.types.plan import Rejection
from sparkfleet.values import Value

_VERSIONS = frozenset(fact for fact, kind in FACTS.items() if kind is FactKind.VERSION) | {
    "image",
    "image_name",
    "image_digest",
}


class RuleMatch(Value):
    """A rule that fires, or might."""

    rule: Rule
    situation: RuleContext
    certain: bool

    @property
    def because(self) -> tuple[str, ...]:
        """The facts that meet its conditions, each with its value."""
        return tuple(
            f"{one.fact} {_shown(self.situation, one.fact)}"
            for one in self.rule.when
            if one.holds(self.situation) is Truth.YES
        )

    @property
    def unknown(self) -> tuple[str, ...]:
        """The facts that would decide a possible finding; none for a certain one."""
        if self.certain:
            return ()
        asked = (*self.rule.when, *(one for group in self.rule.unless for one in group))
        return tuple(dict.fromkeys(one.fact for one in asked if one.holds(self.situation) is Truth.UNKNOWN))

    @property
    def counts(self) -> bool:
        """True if it may change the candidate: certain, or possible garbage that only a version could exclude."""
        return self.certain or (self.rule.severity == "garbage" and set(self.unknown) <= _VERSIONS)

    @property
    def prefilled_again(self) -> float:
        """Tokens of earlier turns that each turn prefills again by it; infinite: all of them."""
        effect = self.rule.effect
        again = effect.prefilled_again if isinstance(effect, Penalise) else None
        return math.inf if again == "all" else again or 0

    @property
    def loses_prefix(self) -> bool:
        """True if the prefix cache finds nothing by it."""
        return math.isinf(self.prefilled_again)

    @property
    def limits(self) -> RuleLimits:
        """The limits; without any if it sets none."""
        effect = self.rule.effect
        return effect.limits if isinstance(effect, Require) else RuleLimits()

    def __str__(self) -> str:
        because = ", ".join(self.because)
        doubt = "" if self.certain else f" (possible: {', '.join(self.unknown)} not known)"
        return f"{self.rule.id}: {self.rule.title}{doubt} [{because}]"


def judge(situation: RuleContext, rules: Iterable[Rule] | None = None) -> tuple[RuleMatch, ...]:
    """Every rule that fires or might, worst severity first, else in the order of `rules` (the planner's, if left out)."""
    return _judged_by_all(situation) if rules is None else _judged(situation, rules)


# On a fleet of equal nodes most candidates look alike.
@lru_cache(maxsize=4096)
def _judged_by_all(situation: RuleContext) -> tuple[RuleMatch, ...]:
    return _judged(situation, _relevant(*(getattr(situation, fact) for fact in _COMMON)))


def _judged(situation: RuleContext, rules: Iterable[Rule]) -> tuple[RuleMatch, ...]:
    found = [
        RuleMatch(rule=rule, situation=situation, certain=answer is Truth.YES)
        for rule in rules
        if (answer := rule.applies(situation)) is not Truth.NO
    ]
    possible = (finding for finding in found if finding.certain or not _outgrown(finding))
    return tuple(sorted(possible, key=_worst_first))


def _outgrown(matched: RuleMatch) -> bool:
    """True if only releases that are older than the architecture would make the rule fire: the engine, whose version is not
    known, is none of them."""
    situation = matched.situation
    if situation.engine_version is not None and parse_version(situation.engine_version) is not None:
        return False
    oldest = earliest(situation.engine, situation.model_type)
    if oldest is None:
        return False
    # A snapshot of a release is it or any later one.
    later = situation.model_copy(update={"engine_version": f"{oldest}.dev0"})
    return matched.rule.applies(later) is Truth.NO


_COMMON = ("device", "engine", "engine_version", "image", "model", "quant", "features", "nodes", "topology")
"""Facts that the candidates for one variant on one kind of node share."""


@lru_cache(maxsize=1024)
def _relevant(*common: object) -> tuple[Rule, ...]:
    """The planner's rules that the common facts alone do not exclude. Knowing more never brings an excluded one back."""
    situation = RuleContext.model_validate(dict(zip(_COMMON, common, strict=True)))
    return tuple(rule for rule in planning_rules() if rule.applies(situation) is not Truth.NO)


def _worst_first(matched: RuleMatch) -> int:
    return SEVERITIES.index(matched.rule.severity)


def _shown(situation: RuleContext, fact: str) -> str:
    value = getattr(situation, fact)
    if fact == "env":
        return " ".join(f"{name}={text}" for name, text in value) or "-"
    if isinstance(value, tuple):
        return " ".join(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value) or "-"


# --- what follows -----------------------------------------------------------------------------------------------------


class RuleJudgement(Value):
    """Judgement of the findings about one candidate."""

    rejected_by: tuple[RuleMatch, ...] = ()
    penalties: tuple[RuleMatch, ...] = ()
    flags: tuple[str, ...] = ()
    """Flags to add: `--name` or `--name=value`, one per name."""
    env: tuple[tuple[str, str], ...] = ()
    speculative: tuple[tuple[str, str], ...] = ()
    limits: RuleLimits = RuleLimits()
    required_by: tuple[RuleMatch, ...] = ()
    warnings: tuple[RuleMatch, ...] = ()
    doubts: tuple[RuleMatch, ...] = ()
    """Possible findings: shown, and a reason for a rung below that is free of them."""

    @property
    def rejected(self) -> bool:
        """True if the candidate must not be taken."""
        return bool(self.rejected_by)

    @property
    def uncured(self) -> tuple[RuleMatch, ...]:
        """Findings of wrong results that nothing published cures (`Rule.is_uncured`)."""
        found = (*self.required_by, *self.warnings)
        return tuple(one for one in found if one.certain and one.rule.is_uncured)

    @property
    def prefix_lost(self) -> RuleMatch | None:
        """The penalty by which most tokens of a conversation's earlier turns are prefilled again; None if none are."""
        lost = [one for one in self.penalties if one.prefilled_again]
        return max(lost, key=lambda one: one.prefilled_again, default=None)

    def factor(self, metric: Metric) -> float:
        """Speed factor of all penalties together (a TTFT is divided by it)."""
        product = 1.0
        for finding in self.penalties:
            then = finding.rule.then
            if isinstance(then, Penalise) and then.metric == metric and then.factor is not None:
                product *= then.factor
        return product


def fold(findings: Iterable[RuleMatch]) -> RuleJudgement:
    """The verdict over all findings about one candidate. Findings come worst first, as from `judge`."""
    ordered = sorted(findings, key=_worst_first)
    certain = [finding for finding in ordered if finding.certain]
    requiring = [
        finding for finding in ordered if finding.counts and isinstance(finding.rule.effect, Require)
    ]
    flags = _first_wins(requiring, "flags")
    return RuleJudgement(
        rejected_by=tuple(finding for finding in certain if isinstance(finding.rule.effect, Reject)),
        penalties=tuple(finding for finding in certain if isinstance(finding.rule.effect, Penalise)),
        flags=tuple(f"{name}={value}" if value else name for name, value in flags.items()),
        env=tuple(_first_wins(requiring, "env").items()),
        speculative=tuple(_first_wins(requiring, "speculative").items()),
        limits=_tightest(requiring),
        required_by=tuple(requiring),
        warnings=tuple(finding for finding in certain if isinstance(finding.rule.effect, Warn)),
        doubts=tuple(finding for finding in ordered if not finding.certain),
    )


def _wanted(matched: RuleMatch, what: str) -> Mapping[str, str]:
    then = matched.rule.then
    assert isinstance(then, Require)
    return parse_flags(then.flags) if what == "flags" else dict(getattr(then, what))


def _first_wins(findings: Iterable[RuleMatch], what: str) -> dict[str, str]:
    """Required values by name; of two for one name, that of the rule with the worse severity."""
    merged: dict[str, str] = {}
    for finding in findings:
        for name, value in _wanted(finding, what).items():
            merged.setdefault(name, value)
    return merged


def _tightest(findings: Iterable[RuleMatch]) -> RuleLimits:
    tightest: dict[str, float] = {}
    for finding in findings:
        then = finding.rule.then
        assert isinstance(then, Require)
        for name, limit in then.limits.model_dump(exclude_none=True).items():
            tightest[name] = min(limit, tightest.get(name, limit))
    return RuleLimits.model_validate(tightest)


def rejections(verdict: RuleJudgement, what: str) -> tuple[Rejection, ...]:
    """The rejections of a candidate as a plan shows them; `what` is the candidate in words."""
    return tuple(
        Rejection(what=what, reason=finding.rule.symptom, rule=finding.rule.id, source=_counted(finding.rule))
        for finding in verdict.rejected_by
    )


def _counted(rule: Rule) -> str:
    first, *more = rule.sources
    return f"{first} and {len(more)} more" if more else first


def merge_flags(given: tuple[str, ...], required: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`given` with `required` in force, and the names of flags whose value that changes.

    Flags that are given with the required value, or not required, stay as they were written.
    """
    have, want = parse_flags(given), parse_flags(required)
    overridden = tuple(name for name, value in want.items() if have.get(name, value) != value)
    kept = without_flags(given, overridden)
    added = (f"{name}={value}" if value else name for name, value in want.items() if have.get(name) != value)
    return (*kept, *added), overridden


def without_flags(argv: tuple[str, ...], names: Collection[str]) -> tuple[str, ...]:
    """The arguments without these flags and their values."""
    kept: list[str] = []
    dropping = False
    for word in argv:
        if parsed := parse_flags((word,)):
            dropping = next(iter(parsed)) in names
        if not dropping:
            kept.append(word)
    return tuple(kept)
