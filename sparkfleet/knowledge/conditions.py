"""The language in which rules ask about a situation. Small and closed; every answer may be unknown.

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

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from fnmatch import translate
from typing import Any

from sparkfleet.knowledge.situation import FACTS, Kind, Situation
from sparkfleet.knowledge.versions import Truth, every, parse_range, some
from sparkfleet.values import Value

Ask = Callable[[Any, str], Truth]


class Condition(Value):
    """One question about one fact."""

    fact: str
    quantity: str
    """any, all or none of `wanted` (for yes-or-no facts and presence, `wanted` is one of "true" and "false")."""
    wanted: tuple[str, ...]

    def holds(self, situation: Situation) -> Truth:
        """The answer. UNKNOWN where the fact is."""
        value = _value(situation, self.fact)
        if value is None:
            return Truth.UNKNOWN
        if self.quantity == "present":
            return Truth.of(bool(value) == (self.wanted[0] == "true"))
        ask = _ASK[FACTS[self.fact]]
        answers = (ask(value, item) for item in self.wanted)
        if self.quantity == "all":
            return every(answers)
        found = some(answers)
        return found.opposite if self.quantity == "none" else found

    def __str__(self) -> str:
        wanted = ", ".join(self.wanted)
        if self.quantity == "present":
            return f"{self.fact} {'known' if self.wanted[0] == 'true' else 'not given'}"
        return f"{self.fact} {wanted if self.quantity == 'any' else f'{self.quantity} of {wanted}'}"


def holds(conditions: tuple[Condition, ...], situation: Situation) -> Truth:
    """Do all of them hold? Stops at the first that does not."""
    return every(condition.holds(situation) for condition in conditions)


def _value(situation: Situation, fact: str) -> Any:
    if fact == "flags":
        return situation.flag_values
    return situation.env_values if fact == "env" else getattr(situation, fact)


# --- asking -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2048)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.lower()))


def _like(value: str, pattern: str) -> Truth:
    return Truth.of(_glob(pattern).fullmatch(value.lower()) is not None)


def _in_range(value: str, wanted: str) -> Truth:
    return parse_range(wanted).contains(value) if value else Truth.NO


def _in_numbers(value: float, wanted: str) -> Truth:
    return Truth.of(all(_compares(value, operator, bound) for operator, bound in _numbers(wanted)))


def _compares(value: float, operator: str, bound: float) -> bool:
    return {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound, "=": value == bound}[
        operator
    ]


def _is(value: bool, wanted: str) -> Truth:
    return Truth.of(value == (wanted == "true"))


def _has(value: tuple[str, ...], wanted: str) -> Truth:
    return Truth.of(wanted in value)


def _given(value: Mapping[str, str], wanted: str) -> Truth:
    name, equals, pattern = wanted.partition("=")
    if name not in value:
        return Truth.NO
    return _like(value[name], pattern) if equals else Truth.YES


_ASK: Mapping[Kind, Ask] = {
    Kind.TEXT: _like,
    Kind.VERSION: _in_range,
    Kind.NUMBER: _in_numbers,
    Kind.YES_NO: _is,
    Kind.SET: _has,
    Kind.OPTIONS: _given,
}


# --- reading ----------------------------------------------------------------------------------------------------------

_NUMBER = r"(\d+(?:\.\d+)?)"
_SPAN = re.compile(rf"{_NUMBER}\s*-\s*{_NUMBER}")
_COMPARISON = re.compile(rf"(>=|<=|>|<)?\s*{_NUMBER}")

_QUANTITIES: Mapping[Kind, frozenset[str]] = {
    Kind.TEXT: frozenset({"not", "present"}),
    Kind.VERSION: frozenset({"not", "present"}),
    Kind.NUMBER: frozenset(),
    Kind.YES_NO: frozenset(),
    Kind.SET: frozenset({"all", "none"}),
    Kind.OPTIONS: frozenset({"all", "none"}),
}


@lru_cache(maxsize=1024)
def _numbers(text: str) -> tuple[tuple[str, float], ...]:
    """The comparisons of a number range.

    Raises:
        ValueError: it is not one.
    """
    if span := _SPAN.fullmatch(text.strip()):
        return ((">=", float(span[1])), ("<=", float(span[2])))
    found = [_COMPARISON.fullmatch(item.strip()) for item in text.split(",")]
    if not all(found):
        raise ValueError(f'expected a number or a range such as ">=2", "<0.9" or "5-8", got "{text}"')
    return tuple((match[1] or "=", float(match[2])) for match in found if match)


def read_conditions(written: object) -> tuple[Condition, ...]:
    """The conditions that a mapping of facts writes down.

    Raises:
        ValueError: a fact is not known, or cannot be asked in that way.
    """
    if not isinstance(written, Mapping) or not written:
        raise ValueError("expected a mapping of facts to what is asked of them")
    return tuple(condition for fact, asked in written.items() for condition in _read(str(fact), asked))


def _read(fact: str, asked: object) -> tuple[Condition, ...]:
    kind = FACTS.get(fact)
    if kind is None:
        raise ValueError(f"{fact}: not a fact that a rule may ask about (see knowledge/situation.py)")
    try:
        if not isinstance(asked, Mapping):
            return (_condition(fact, kind, "any", asked),)
        if unlike := sorted(set(asked) - _QUANTITIES[kind]) or (not asked and ["{}"]):
            raise ValueError(f"{unlike[0]} cannot be asked of a fact of kind {kind.value}")
        return tuple(_condition(fact, kind, str(quantity), item) for quantity, item in asked.items())
    except ValueError as error:
        raise ValueError(f"{fact}: {error}") from error


def _condition(fact: str, kind: Kind, quantity: str, item: object) -> Condition:
    items = item if isinstance(item, tuple | list) else (item,)
    if quantity == "present":
        return Condition(fact=fact, quantity=quantity, wanted=(_word(Kind.YES_NO, items[0]),))
    wanted = tuple(_word(kind, one) for one in items)
    if not wanted:
        raise ValueError("expected at least one value")
    return Condition(fact=fact, quantity="none" if quantity == "not" else quantity, wanted=wanted)


def _word(kind: Kind, item: object) -> str:
    """One value as text, checked to be of its kind."""
    if kind is Kind.YES_NO:
        if not isinstance(item, bool):
            raise ValueError(f"expected true or false, got {item!r}")
        return str(item).lower()
    if kind is Kind.NUMBER and isinstance(item, int | float) and not isinstance(item, bool):
        return f"{item:g}"
    if not isinstance(item, str) or not item:
        raise ValueError(f"expected text in quotes, got {item!r}")
    if kind is Kind.NUMBER:
        _numbers(item)
    if kind is Kind.VERSION:
        parse_range(item)
    return item
