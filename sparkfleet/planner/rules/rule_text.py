"""A rule in words, as `sparkfleet explain` prints it."""

from __future__ import annotations

from difflib import get_close_matches

from sparkfleet.errors import SparkfleetError
from sparkfleet.knowledge.rules.rules import (
    Doctor,
    Rule,
    load_book,
)

_SEVERITY_WORDS = {
    "garbage": "wrong answers without an error",
    "fails": "does not start, or dies",
    "slow": "works, but slowly",
    "limits": "works within limits",
}
_CONFIDENCE_WORDS = {
    "vendor": "stated by the vendor",
    "multi": "several independent reports",
    "single": "one report",
    "conjecture": "conjecture",
}


def explain_rule(rule_id: str) -> str:
    """A rule as `sparkfleet explain` prints it: symptom, conditions, remedy and sources.

    Raises:
        SparkfleetError: there is no such rule.
    """
    found = find_rule(rule_id)
    return _explained(found) if isinstance(found, Rule) else f"{rule_id}\n  not a rule    {found}"


def find_rule(rule_id: str) -> Rule | str:
    """The rule of that name; of a known issue that is none, why not.

    Raises:
        SparkfleetError: there is no such rule.
    """
    book = load_book()
    for rule in book.rules:
        if rule.id == rule_id:
            return rule
    if rule_id in (left_out := dict(book.not_rules)):
        return left_out[rule_id]
    ids = [*(rule.id for rule in book.rules), *left_out]
    near = [one for one in ids if rule_id.lower() in one][:5] or get_close_matches(rule_id, ids, n=3)
    raise SparkfleetError(
        f'no rule is called "{rule_id}".',
        do=f"Did you mean {' or '.join(near)}?" if near else "`sparkfleet explain` lists them all.",
    )


def _explained(rule: Rule) -> str:
    lines = [
        ("", rule.title),
        ("what happens", rule.symptom),
        ("severity", f"{rule.severity}: {_SEVERITY_WORDS[rule.severity]}; hits the {rule.blast}"),
        ("when", " · ".join(str(condition) for condition in rule.when)),
        *(("unless", " · ".join(str(condition) for condition in group)) for group in rule.unless),
        ("then", _action(rule)),
        *(("remedy", text) for text in remedies(rule)),
        *([("against", rule.against)] if rule.against else []),
        *([("disputed", f"only warns: {rule.dispute}")] if rule.dispute else []),
        ("confidence", f"{rule.confidence}: {_CONFIDENCE_WORDS[rule.confidence]}, {rule.date}"),
        *(("source", source) for source in rule.sources),
    ]
    return "\n".join([rule.id, *(f"  {name:<13} {text}".rstrip() for name, text in lines)])


def _action(rule: Rule) -> str:
    do = "a check of the node, the link or the launch" if isinstance(rule.then, Doctor) else rule.then.do
    return f"{do}: {rule.adds}" if rule.adds else do


def remedies(rule: Rule) -> tuple[str, ...]:
    """Remedies, one line each."""
    remedy = rule.remedy
    env = tuple(f"{name}={value}" for name, value in remedy.env)
    named = (
        ("version: ", remedy.version),
        ("image: ", remedy.image),
        ("instead: ", remedy.alternative),
        ("check: ", remedy.check),
        ("", remedy.note),
    )
    return (*remedy.flags, *env, *remedy.steps, *(f"{prefix}{text}" for prefix, text in named if text))
