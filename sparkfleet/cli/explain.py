"""`sparkfleet explain`: what is known about a combination, and where it is known from."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, print_json, print_line
from sparkfleet.cli.session import JsonOption
from sparkfleet.knowledge.rules import Rule
from sparkfleet.planning.rules import explain_rule, find_rule


def explain(
    rule: Annotated[
        str, typer.Argument(help="A rule's id, as plans show it.", metavar="RULE", show_default=False)
    ],
    json: JsonOption = False,
) -> int:
    """Show a rule: what happens, when, what to do about it, and the sources."""
    if json:
        found = find_rule(rule)
        known = {"rule": found.model_dump(mode="json")} if isinstance(found, Rule) else {"not_a_rule": found}
        print_json({"version": OUTPUT_VERSION, "id": rule} | known)
        return Exit.DONE
    for line in explain_rule(rule).splitlines():
        print_line(line)
    return Exit.DONE
