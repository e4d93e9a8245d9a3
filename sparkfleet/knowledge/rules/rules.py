"""Known combinations that break, corrupt, slow down or limit: `rules.yaml`, checked on load.

A rule has *when* (conditions on a `RuleContext`), *then* (the action of a planner or a node check) and its sources.
`planner/rules/judgement.py` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries, pairs
from sparkfleet.knowledge.rules.rule_context import RuleContext
from sparkfleet.knowledge.rules.rule_language import Condition, holds, read_conditions
from sparkfleet.knowledge.versions import Truth, every, some
from sparkfleet.values import Value

RuleSeverity = Literal["garbage", "fails", "slow", "limits"]
Blast = Literal["request", "engine", "host", "cluster"]
Confidence = Literal["vendor", "multi", "single", "conjecture"]
Metric = Literal["decode_tps", "prefill_tps", "ttft"]

SEVERITIES: tuple[RuleSeverity, ...] = ("garbage", "fails", "slow", "limits")
"""Worst first: wrong answers are worse than none."""


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Pairs = Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)]
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Reject(Value):
    """The candidate is rejected."""

    do: Literal["reject"]


class Penalise(Value):
    """The candidate is ranked lower. Without a factor the speed model includes the effect, and the rule explains it."""

    do: Literal["penalise"]
    factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Factor on the speed (a TTFT is divided by it)."""
    metric: Metric = "decode_tps"
    prefilled_again: Literal["all"] | Annotated[int, Field(gt=0)] | None = None
    """Tokens of a conversation's earlier turns that each turn prefills again, because the prefix cache does not find them.
    They count in the rank, by the candidate's own prefill rate."""


class RuleLimits(Value):
    """Largest values that work."""

    memory_fraction: float | None = None
    context: int | None = None
    """Tokens of prompt and completion."""
    prompt_tokens: int | None = None
    concurrency: int | None = None
    batch_tokens: int | None = None
    """Tokens of one prefill step."""
    speculation_tokens: int | None = None


class Require(Value):
    """The candidate is changed: flags, variables, speculation settings or limits."""

    do: Literal["require"]
    flags: OneOrMore = ()
    """`--name` or `--name=value`; replaces a flag of that name."""
    env: Pairs = ()
    speculative: Pairs = ()
    """Keys of vLLM's speculative config."""
    limits: RuleLimits = RuleLimits()
    inferred: bool = False
    """True if nobody has published that it cures the fault: then a fault of severity garbage costs rank."""

    @model_validator(mode="after")
    def _not_empty(self) -> Require:
        if self.model_fields_set == {"do"}:
            raise ValueError("expected flags, env, speculative or limits")
        return self


class Warn(Value):
    """The candidate is kept, with a warning."""

    do: Literal["warn"]


class Doctor(Value):
    """A check of nodes and links, without an effect on plans."""

    do: Literal["doctor"]


RuleEffect = Annotated[Reject | Penalise | Require | Warn | Doctor, Field(discriminator="do")]


class Remedy(Value):
    """Remedy that a person can apply."""

    flags: OneOrMore = ()
    env: Pairs = ()
    version: str = ""
    image: str = ""
    alternative: str = ""
    steps: OneOrMore = ()
    check: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _not_empty(self) -> Remedy:
        if not self.model_fields_set:
            raise ValueError("expected at least one remedy")
        return self


def _situations(value: object) -> object:
    return (value,) if isinstance(value, Mapping) else value


Situations = Annotated[tuple[RuleContext, ...], BeforeValidator(_situations), Field(min_length=1)]


class Example(Value):
    """Situations in which the rule must fire, and others in which it must not. A test checks them."""

    fires: Situations
    silent: Situations


def _conditions(value: object) -> object:
    return value if isinstance(value, tuple) else read_conditions(value)


def _alternatives(value: object) -> object:
    items = value if isinstance(value, tuple) else (value,)
    return tuple(item if isinstance(item, tuple) else read_conditions(item) for item in items)


class Contradiction(Value):
    """A newer source that reports the contrary of a rule."""

    says: Annotated[str, Field(min_length=10)]
    sources: Sources
    date: Date


class Rule(Value):
    """A known fault of a combination."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    issue: str = ""
    """The known issue, if it became several rules."""
    title: str
    symptom: str
    """Visible effect."""
    when: Annotated[tuple[Condition, ...], BeforeValidator(_conditions)]
    unless: Annotated[tuple[tuple[Condition, ...], ...], BeforeValidator(_alternatives)] = ()
    """Known exceptions: the rule does not fire if all conditions of one of these hold."""
    then: RuleEffect
    severity: RuleSeverity
    blast: Blast
    confidence: Confidence
    remedy: Remedy
    against: str = ""
    """Contrary evidence, with its versions."""
    contradicted: Contradiction | None = None
    """A newer source that reports the contrary for the same versions."""
    sources: Sources
    date: Date
    example: Example

    @model_validator(mode="after")
    def _contradicted_later(self) -> Rule:
        newer = self.contradicted
        if newer is not None and newer.date[: len(self.date)] < self.date[: len(newer.date)]:
            raise ValueError(f"contradicted: {newer.date} is older than the rule, {self.date}")
        return self

    @property
    def is_disputed(self) -> bool:
        """True if it has one source, and a newer one reports the contrary."""
        return self.contradicted is not None and self.confidence in ("single", "conjecture")

    @property
    def effect(self) -> RuleEffect:
        """Effect on a candidate: `then`; a disputed rule only warns, with both sources."""
        return Warn(do="warn") if self.is_disputed else self.then

    @property
    def dispute(self) -> str:
        """Both sources of a disputed rule, with their dates; "" for another one."""
        newer = self.contradicted
        if newer is None or not self.is_disputed:
            return ""
        return f"reported by {self.sources[0]} ({self.date}); {newer.says} ({newer.sources[0]}, {newer.date})"

    @property
    def is_uncured(self) -> bool:
        """True if a candidate may be taken although it computes wrong results, and nobody has published that what is done
        about it cures them. A conjecture and a disputed rule are no such faults."""
        then = self.then
        kept = isinstance(then, Warn) or (isinstance(then, Require) and then.inferred)
        return (
            kept and self.severity == "garbage" and self.confidence != "conjecture" and not self.is_disputed
        )

    @property
    def issue_id(self) -> str:
        """The known issue that this rule comes from."""
        return self.issue or self.id

    @property
    def adds(self) -> str:
        """Effect of the rule on a candidate, in words; "" if `then.do` covers it."""
        then = self.then
        if isinstance(then, Penalise):
            again = f"prefilled again in each turn: {then.prefilled_again}" if then.prefilled_again else ""
            return f"{then.metric} × {then.factor:g}" if then.factor else again
        if not isinstance(then, Require):
            return ""
        pairs = (f"{name}={value}" for name, value in (*then.env, *then.speculative))
        limits = (f"{name} <= {limit:g}" for name, limit in then.limits.model_dump(exclude_none=True).items())
        adds = ", ".join((*then.flags, *pairs, *limits))
        return f"{adds} (inferred)" if then.inferred else adds

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the facts that its conditions refer to."""
        conditions = (*self.when, *(one for group in self.unless for one in group))
        return tuple(dict.fromkeys(condition.fact for condition in conditions))

    def applies(self, situation: RuleContext) -> Truth:
        """YES if it fires. NO on a CPU, unless the rule has a condition on the device: all rules are about GB10."""
        if situation.device == "cpu" and "device" not in self.facts:
            return Truth.NO
        found = holds(self.when, situation)
        if found is Truth.NO or not self.unless:
            return found
        return every((found, some(holds(group, situation) for group in self.unless).opposite))


class Book(Value):
    """All rules, and the known issues that are none."""

    rules: tuple[Rule, ...]
    not_rules: tuple[tuple[str, str], ...]
    """Known issues that did not become rules, each with the reason."""


class RuleFile(Value):
    """Contents of `rules.yaml`."""

    sources: dict[str, Annotated[str, Field(min_length=1)]]
    """Names that rules cite → sources."""
    rules: UniqueEntries[Rule]
    not_rules: dict[str, Annotated[str, Field(min_length=1)]]

    @model_validator(mode="after")
    def _consistent(self) -> RuleFile:
        for rule in self.rules:
            if rule.issue_id in self.not_rules:
                raise ValueError(f"{rule.id}: is listed under rules and under not_rules")
            for source in rule.sources:
                if source not in self.sources and "/" not in source:
                    raise ValueError(
                        f"{rule.id}: sources: {source} is neither an address nor listed in sources"
                    )
        return self

    @cached_property
    def book(self) -> Book:
        """The rules, sources written out."""
        return Book(
            rules=tuple(self._cited(rule) for rule in self.rules),
            not_rules=tuple(self.not_rules.items()),
        )

    def _cited(self, rule: Rule) -> Rule:
        sources = tuple(self.sources.get(source, source) for source in rule.sources)
        return rule.model_copy(update={"sources": sources})


RULES_FILE = DataFile("rules/rules.yaml", RuleFile)


def load_book() -> Book:
    """The packaged rules, and the issues that are none."""
    return RULES_FILE.content.book


def load_rules() -> tuple[Rule, ...]:
    """All packaged rules, in the order of the file."""
    return load_book().rules


@cache
def planning_rules() -> tuple[Rule, ...]:
    """Rules with an effect on candidates."""
    return tuple(rule for rule in load_rules() if not isinstance(rule.then, Doctor))


@cache
def doctor_rules() -> tuple[Rule, ...]:
    """Rules of node and link checks; `rule.facts` has the facts that they need."""
    return tuple(rule for rule in load_rules() if isinstance(rule.then, Doctor))
