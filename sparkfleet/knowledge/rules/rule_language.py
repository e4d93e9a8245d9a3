"""The language of rules' conditions. Small and closed; every answer may be unknown.

    engine: vllm                        text: equal, letter case aside
    quant: [nvfp4, mxfp4]               … or one of
    model: "*/Qwen3.6-27B*"             … or like a glob
    image_digest: {present: false}      … or known to be there or not; {not: …}: known and none of these
    engine_version: ">=0.24,<0.28"      version: a range (see versions.py); a list means any of them
    speculation_tokens: "5-8"           number: a range or a value; a list means any of them
    cuda_graphs: true                   yes or no
    features: gdn                       set: contains one of; {all: […]}, {none: […]}
    flags: "--kv-cache-dtype=fp8*"      options: one of them is given, with a value like the glob; {all: …}, {none: …}
    env: {none: [NCCL_NET_PLUGIN=none]}

All conditions of a mapping have to hold.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Literal

from sparkfleet.knowledge.models.model_names import glob
from sparkfleet.knowledge.rules.rule_context import CHOICES, FACTS, FactKind, RuleContext
from sparkfleet.knowledge.versions import Truth, every, parse_range, some
from sparkfleet.specs.fields import quote
from sparkfleet.values import Value

Test = Callable[[Any], Truth]


class Condition(Value):
    """One condition on one fact."""

    fact: str
    quantity: Literal["any", "all", "none", "present"]
    """Number of `wanted` that have to be met. For presence `wanted` is "true" or "false"."""
    wanted: tuple[str, ...]

    def holds(self, situation: RuleContext) -> Truth:
        """The answer. UNKNOWN if the fact is."""
        value = _value(situation, self.fact)
        return Truth.UNKNOWN if value is None else _test(self.fact, self.quantity, self.wanted)(value)

    def __str__(self) -> str:
        wanted = ", ".join(self.wanted)
        if self.quantity == "present":
            return f"{self.fact} {'known' if self.wanted[0] == 'true' else 'not given'}"
        return f"{self.fact} {wanted if self.quantity == 'any' else f'{self.quantity} of {wanted}'}"


def holds(conditions: tuple[Condition, ...], situation: RuleContext) -> Truth:
    """YES if all of them hold. Stops at the first that does not."""
    result = Truth.YES
    for condition in conditions:
        answer = condition.holds(situation)
        if answer is Truth.NO:
            return answer
        if answer is Truth.UNKNOWN:
            result = answer
    return result


def _value(situation: RuleContext, fact: str) -> Any:
    if fact == "flags":
        return situation.flag_values
    return situation.env_values if fact == "env" else getattr(situation, fact)


# --- evaluating -------------------------------------------------------------------------------------------------------

_COSTLY = frozenset({FactKind.TEXT, FactKind.VERSION})


# Made once per condition: a planner evaluates every condition for every candidate.
@cache
def _test(fact: str, quantity: str, wanted: tuple[str, ...]) -> Test:
    if quantity == "present":
        present = wanted[0] == "true"
        return lambda value: Truth.of(bool(value) == present)
    kind = FACTS[fact]
    met = _joined(quantity, [_TESTS[kind](item) for item in wanted])
    if kind in _COSTLY:
        met = lru_cache(maxsize=1024)(met)
    return (lambda value: met(value).opposite) if quantity == "none" else met


def _joined(quantity: str, tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    join = every if quantity == "all" else some
    return lambda value: join(test(value) for test in tests)


def _text(wanted: str) -> Test:
    pattern = glob(wanted)
    return lambda value: Truth.of(pattern.fullmatch(value.lower()) is not None)


def _version(wanted: str) -> Test:
    versions = parse_range(wanted)
    return lambda value: versions.contains(value) if value else Truth.NO


def _number(wanted: str) -> Test:
    asked = _numbers(wanted)
    if len(asked) == 1:
        ((compare, bound),) = asked
        return lambda value: Truth.of(compare(value, bound))
    return lambda value: Truth.of(all(compare(value, bound) for compare, bound in asked))


def _yes_no(wanted: str) -> Test:
    answer = wanted == "true"
    return lambda value: Truth.of(value == answer)


def _set(wanted: str) -> Test:
    return lambda value: Truth.of(wanted in value)


def _options(wanted: str) -> Test:
    name, equals, pattern = wanted.partition("=")
    if not equals:
        return lambda value: Truth.of(name in value)
    like = glob(pattern)
    return lambda value: Truth.of(name in value and like.fullmatch(value[name].lower()) is not None)


_TESTS: Mapping[FactKind, Callable[[str], Test]] = {
    FactKind.TEXT: _text,
    FactKind.VERSION: _version,
    FactKind.NUMBER: _number,
    FactKind.YES_NO: _yes_no,
    FactKind.SET: _set,
    FactKind.OPTIONS: _options,
}

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


# --- reading ----------------------------------------------------------------------------------------------------------

_NUMBER = r"(\d+(?:\.\d+)?)"
_SPAN = re.compile(rf"{_NUMBER}\s*-\s*{_NUMBER}")
_COMPARISON = re.compile(rf"(>=|<=|>|<)?\s*{_NUMBER}")

_QUANTITIES: Mapping[FactKind, frozenset[str]] = {
    FactKind.TEXT: frozenset({"not", "present"}),
    FactKind.VERSION: frozenset({"not", "present"}),
    FactKind.NUMBER: frozenset(),
    FactKind.YES_NO: frozenset(),
    FactKind.SET: frozenset({"all", "none"}),
    FactKind.OPTIONS: frozenset({"all", "none"}),
}


def _numbers(text: str) -> list[tuple[Callable[[float, float], bool], float]]:
    """The comparisons of a number range.

    Raises:
        ValueError: it is no number range.
    """
    if span := _SPAN.fullmatch(text.strip()):
        return [(operator.ge, float(span[1])), (operator.le, float(span[2]))]
    found = [_COMPARISON.fullmatch(item.strip()) for item in text.split(",")]
    if not all(found):
        raise ValueError(f'expected a number or a range such as ">=2", "<0.9" or "5-8", got "{text}"')
    return [(_COMPARE[match[1] or "="], float(match[2])) for match in found if match]


_MEANT: Mapping[str, Literal["any", "all", "none"]] = {
    "any": "any",
    "all": "all",
    "none": "none",
    "not": "none",
}


def read_conditions(written: object) -> tuple[Condition, ...]:
    """The conditions in a mapping of facts.

    Raises:
        ValueError: a fact is not known, or has no condition of that kind.
    """
    if not isinstance(written, Mapping) or not written:
        raise ValueError("expected a mapping of facts to their conditions")
    return tuple(condition for fact, asked in written.items() for condition in _read(str(fact), asked))


def _read(fact: str, asked: object) -> tuple[Condition, ...]:
    kind = FACTS.get(fact)
    if kind is None:
        raise ValueError(f"{fact}: not a fact that a rule may refer to (see knowledge/rules/rule_context.py)")
    try:
        if not isinstance(asked, Mapping):
            return (_condition(fact, kind, "any", asked),)
        if unlike := sorted(set(asked) - _QUANTITIES[kind]) or (not asked and ["{}"]):
            known = ", ".join([*sorted(_QUANTITIES[kind]), "the values alone"])
            raise ValueError(
                f"{unlike[0]} is no condition for a fact of kind {kind.value}; these are: {known}"
            )
        return tuple(_condition(fact, kind, str(quantity), item) for quantity, item in asked.items())
    except ValueError as error:
        raise ValueError(f"{fact}: {error}") from error


def _condition(fact: str, kind: FactKind, quantity: str, item: object) -> Condition:
    items = item if isinstance(item, tuple | list) else (item,)
    if not items:
        raise ValueError("expected at least one value")
    if quantity == "present":
        return Condition(fact=fact, quantity="present", wanted=(_word(FactKind.YES_NO, items[0]),))
    wanted = tuple(_word(kind, one) for one in items)
    choices = CHOICES.get(fact)
    for word in wanted if choices else ():
        # A misspelt word would only make a rule that never fires.
        if not any(glob(word).fullmatch(choice) for choice in choices or ()):
            raise ValueError(f"{quote(word)} is none of {', '.join(sorted(choices or ()))}")
    return Condition(fact=fact, quantity=_MEANT[quantity], wanted=wanted)


def _word(kind: FactKind, item: object) -> str:
    """One value as text, checked to be of its kind."""
    if kind is FactKind.YES_NO:
        if not isinstance(item, bool):
            raise ValueError(f"expected true or false, got {quote(item) if isinstance(item, str) else item}")
        return str(item).lower()
    if kind is FactKind.NUMBER and isinstance(item, int | float) and not isinstance(item, bool):
        return f"{item:g}"
    if not isinstance(item, str) or not item:
        raise ValueError(f"expected text in quotes, got {quote(item) if isinstance(item, str) else item}")
    if kind is FactKind.NUMBER:
        _numbers(item)
    if kind is FactKind.VERSION:
        parse_range(item)
    return item
