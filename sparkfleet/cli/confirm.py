"""Asks for agreement before something is changed."""

from __future__ import annotations

import sys

import typer
from rich.text import Text

from sparkfleet.cli.loading import loading
from sparkfleet.cli.output import errors
from sparkfleet.errors import SparkfleetError
from sparkfleet.specs.standard_input import ended_by_ctrl_c

ADD_YES = "If what is shown above is right, run the command again with --yes."


def confirm(question: str, yes: bool = False, *, alone: str = ADD_YES) -> None:
    """Return if `--yes` was given or the person agrees. The question is on standard error: standard output may be JSON.

    Args:
        question: the question, with its question mark.
        yes: True if it was answered on the command line.
        alone: the remedy if standard input is not a terminal.

    Raises:
        SparkfleetError: standard input is not a terminal, or the answer is no.
        Abort: Ctrl-C instead of an answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        errors.print(Text(question))
        raise SparkfleetError(
            "Nothing was changed: this needs a confirmation.",
            means="Standard input is not a terminal, so the question cannot be answered.",
            do=alone,
        )
    loading.erase()
    try:
        with ended_by_ctrl_c():
            agreed = typer.confirm(question, err=True)
    except typer.Abort:
        raise typer.Abort("Interrupted. Nothing was changed.") from None
    if not agreed:
        raise SparkfleetError("Nothing was changed: the answer was no.")
