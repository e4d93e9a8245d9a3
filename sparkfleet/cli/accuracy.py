"""`sparkfleet accuracy`: compares the planner's predictions with published measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import JsonOption
from sparkfleet.cli.output import console
from sparkfleet.errors import SparkfleetError


def accuracy(
    rows: Annotated[
        Path, typer.Argument(help="CSV of measurements, one per row.", metavar="ROWS.csv", show_default=False)
    ],
    configs: Annotated[
        Path | None,
        typer.Option("--configs", help="JSON of model names and their configs, instead of the packaged one."),
    ] = None,
    head_to_heads: Annotated[
        Path | None,
        typer.Option(
            "--head-to-heads", help="CSV of pairs: also count how often the faster side is predicted."
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Predict every row of a file of measurements and show the errors."""
    try:
        from sparkfleet.accuracy.accuracy import run as measure
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("sparkfleet."):
            raise
        raise SparkfleetError(
            "This environment has no published measurements: `sparkfleet up` made it for serving only.",
            do="Run `sparkfleet accuracy` on the machine on which you installed sparkfleet.",
        ) from None
    report = measure(rows, configs, head_to_heads)
    if json:
        sys.stdout.write(report.json() + "\n")
    else:
        console.print(report.text(), markup=False)
    return Exit.DONE
