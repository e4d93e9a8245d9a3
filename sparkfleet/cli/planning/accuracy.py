"""`sparkfleet accuracy`: compares the planner's predictions and choices with published measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import JsonOption
from sparkfleet.cli.output import console
from sparkfleet.errors import SparkfleetError, SpecError

_IN_SAMPLE = (
    "In sample: the factors were fitted on these rows. docs/planner.md has the errors on sources left out."
)


def accuracy(
    rows: Annotated[
        Path | None,
        typer.Argument(
            help="CSV of measurements, one per row; left out: the packaged ones, which were published.",
            metavar="ROWS.csv",
            show_default=False,
        ),
    ] = None,
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
    *,
    decisions: Annotated[
        bool,
        typer.Option(
            "--decisions",
            help="Hold the plan's choices against the best published configurations, of ROWS.csv or of the package.",
        ),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="With --decisions: as a Markdown table.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Predict every row of a file of measurements and show the errors. Without one: the published ones."""
    if decisions and (configs or head_to_heads):
        raise SpecError(
            "--decisions takes neither --configs nor --head-to-heads.",
            means="Choices are made with the packaged configs.",
            do="Leave them out; or leave --decisions out, to compare predictions.",
        )
    if markdown and not decisions:
        raise SpecError(
            "--markdown is a form of --decisions.",
            means="Errors of predictions have no Markdown table.",
            do="Add --decisions, or take --json.",
        )
    machine, table, people = _reported(rows, configs, head_to_heads, decisions=decisions)
    if json:
        sys.stdout.write(machine + "\n")
    elif markdown and decisions:
        sys.stdout.write(table + "\n")
    else:
        console.print(people, markup=False)
    return Exit.DONE


def _reported(
    rows: Path | None, configs: Path | None, head_to_heads: Path | None, *, decisions: bool
) -> tuple[str, str, str]:
    """The report as JSON, as a Markdown table, and in words."""
    try:
        from sparkfleet.accuracy.accuracy import compare_rows
        from sparkfleet.accuracy.decisions import decide, published_cases
        from sparkfleet.knowledge.measurements import BENCHMARKS
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("sparkfleet."):
            raise
        raise SparkfleetError(
            "This environment has no published measurements: `sparkfleet up` made it for serving only.",
            do="Run `sparkfleet accuracy` on the machine on which you installed sparkfleet.",
        ) from None
    if decisions:
        decided = decide(published_cases(rows), unseen=True)
        return decided.json(), decided.markdown(), decided.text()
    errors = compare_rows(rows or BENCHMARKS, configs, head_to_heads)
    return errors.json(), "", errors.text() if rows else f"{errors.text()}\n\n{_IN_SAMPLE}"
