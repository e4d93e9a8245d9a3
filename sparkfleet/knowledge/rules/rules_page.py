"""Prints docs/rules.md: all rules, and the issues that are none."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sparkfleet.knowledge.rules.rules import Book, Rule, load_book

_SECTIONS = {
    "reject": "Candidate rejected",
    "require": "Candidate changed",
    "penalise": "Candidate ranked lower",
    "warn": "Candidate kept, with a warning",
    "doctor": "Checks of nodes and links",
}

_HEAD = """\
# Known combinations that break

Written by `python -m sparkfleet.knowledge.rules.rules_page`; a test compares. The rules are in
`sparkfleet/knowledge/rules/rules.yaml`: {rules} rules from {issues} issues. {left} more issues are no rules; the last
section has the reasons. `sparkfleet explain RULE` prints one with its symptom and its remedies.

*when* is a list of conditions that all have to hold. An unknown fact makes a rule *possible*: it is shown, never rejects,
and changes a candidate only if the alternative is silent garbage and only a version is unknown
(`sparkfleet/planner/rules/judgement.py`). All rules are about GB10; on a CPU none fires.

To add a rule, add an entry to the file, with an example of a situation in which it fires and one in which it does not.
"""


def render(book: Book) -> str:
    """The page."""
    issues = {rule.issue_id for rule in book.rules}
    head = _HEAD.format(rules=len(book.rules), issues=len(issues), left=len(book.not_rules))
    parts = [head, *(_section(book, do, title) for do, title in _SECTIONS.items()), _left_out(book)]
    return "\n".join(parts)


def _section(book: Book, do: str, title: str) -> str:
    rules = [rule for rule in book.rules if rule.then.do == do]
    return f"## {title} ({len(rules)})\n\n" + "\n".join(_item(rule) for rule in rules)


def _item(rule: Rule) -> str:
    lines = [
        f"**{rule.id}** {rule.title}",
        f"when {_code(str(one) for one in rule.when)}",
        *(f"unless {_code(str(one) for one in group)}" for group in rule.unless),
        *([f"then `{rule.adds}`"] if rule.adds else []),
        f"{rule.severity}, {rule.confidence}, {rule.date}: {'; '.join(rule.sources)}",
        *([f"against it: {rule.against}"] if rule.against else []),
        *([f"disputed, so it only warns: {rule.dispute}"] if rule.dispute else []),
    ]
    return "- " + "\\\n  ".join(lines) + "\n"


def _code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _left_out(book: Book) -> str:
    items = "\n".join(f"- **{issue}** {reason}" for issue, reason in book.not_rules)
    return f"## Known issues that are no rules ({len(book.not_rules)})\n\n{items}\n"


if __name__ == "__main__":
    sys.stdout.write(render(load_book()))
