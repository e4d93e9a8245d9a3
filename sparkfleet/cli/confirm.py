"""Asking before something is changed."""

from __future__ import annotations

import sys

import typer
from rich.text import Text

from sparkfleet.cli.output import errors
from sparkfleet.errors import SparkfleetError

ADD_YES = "Look at what is shown above, and add --yes where it is right."


def confirm(question: str, yes: bool = False, *, alone: str = ADD_YES) -> None:
    """Go on where `--yes` was given, or where a person says so. It is asked on standard error: standard output may be JSON.

    Args:
        question: what is asked.
        yes: it was answered on the command line.
        alone: what to do where nobody is there to be asked.

    Raises:
        SparkfleetError: nobody is there to be asked, or the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        errors.print(Text(question))
        raise SparkfleetError(
            "Nobody is there to agree, so nothing was changed.",
            means="Standard input is not a terminal.",
            do=alone,
        )
    if not typer.confirm(question, err=True):
        raise SparkfleetError("Not agreed, so nothing was changed.")
