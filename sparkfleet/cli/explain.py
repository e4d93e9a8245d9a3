"""`sparkfleet explain`: what is known about a combination, and where it is known from."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import print_line
from sparkfleet.planning.rules import explain_rule


def explain(
    rule: Annotated[
        str, typer.Argument(help="A rule's id, as plans show it.", metavar="RULE", show_default=False)
    ],
) -> int:
    """Show a rule: what happens, when, what to do about it, and the sources."""
    for line in explain_rule(rule).splitlines():
        print_line(line)
    return Exit.DONE
