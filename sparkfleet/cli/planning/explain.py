"""`sparkfleet explain`: shows a rule about a combination, with its sources, or lists all rules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import JsonOption
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json, print_line
from sparkfleet.knowledge.rules.rules import Rule, load_book
from sparkfleet.planner.rules.rule_text import explain_rule, find_rule


def explain(
    rule: Annotated[
        str | None,
        typer.Argument(
            help="A rule's id, as plans show it; left out: the list of all.",
            metavar="RULE",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show a rule: its effect, its conditions, the remedy, and the sources. Without one, list all."""
    if rule is None:
        return _list(json)
    if json:
        found = find_rule(rule)
        known = {"rule": _as_json(found)} if isinstance(found, Rule) else {"not_a_rule": found}
        print_json({"version": OUTPUT_VERSION, "id": rule} | known)
        return Exit.DONE
    for line in explain_rule(rule).splitlines():
        print_line(line)
    return Exit.DONE


def _list(json: bool) -> int:
    rules = sorted(load_book().rules, key=lambda rule: rule.id)
    if json:
        listed = [{"id": rule.id, "title": rule.title, "severity": rule.severity} for rule in rules]
        print_json({"version": OUTPUT_VERSION, "rules": listed})
        return Exit.DONE
    for rule in rules:
        console.print(rule.id)
        print_line(f"    {rule.title}")
    console.print(f"{len(rules)} rules. `sparkfleet explain RULE` shows one with its remedy and sources.")
    return Exit.DONE


def _as_json(rule: Rule) -> dict[str, Any]:
    """A rule for programs. An example has values for a few of a hundred facts; the others are left out."""
    return rule.model_dump(mode="json") | {"example": rule.example.model_dump(mode="json", exclude_none=True)}
