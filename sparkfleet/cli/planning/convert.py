"""`sparkfleet convert`: makes deployments of launch scripts, compose files and recipes that somebody has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.output import console, errors
from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.conversion import ConvertedLaunch
from sparkfleet.fleet.conversion.convert import convert as deployments_of
from sparkfleet.fleet.conversion.convert import source_name, write_deployments
from sparkfleet.fleet.conversion.deployment_text import deployment_text
from sparkfleet.specs.fields import quote

SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Value of a variable of the file, or of a positional parameter (1=VALUE), instead of its own. Repeatable.",
        show_default=False,
    ),
]


def convert(
    file: Annotated[
        str,
        typer.Argument(
            help="Shell script, compose file, recipe of sparkrun, unit of systemd, or output of `docker inspect`;"
            " -: standard input.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    settings: SetOption = [],  # noqa: B006 (typer reads the default and changes nothing)
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME", help="Take one launch line of several.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIRECTORY",
            help="Write a file for each launch line there. Left out: print it.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Make a deployment of a launch script that you have. Runs nothing of it; the plan then judges it."""
    found = deployments_of(file, dict(map(_setting, settings)), only)
    if output is None and len(found) > 1:
        names = ", ".join(one.deployment.name for one in found)
        raise SpecError(
            f"{source_name(file)} has {len(found)} launch lines: {names}.",
            means="Nothing was written.",
            do="`--only NAME` takes one of them, `--output DIRECTORY` writes a file for each.",
        )
    if output is None:
        console.print(deployment_text(found[0], source_name(file)), end="", markup=False, soft_wrap=True)
        written: Sequence[Path] = ()
    else:
        written = write_deployments(found, file, output)
        for path in written:
            console.print(f"wrote {path}", markup=False)
    for line in _next_lines(found, written):
        errors.print(line, markup=False, style="dim")
    return Exit.DONE


def _setting(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([A-Za-z_]\w*|[1-9]\d*)=(.*)", text, re.DOTALL | re.ASCII)
    if found is None:
        raise typer.BadParameter(f"--set {quote(text)}. Expected NAME=VALUE.")
    return found[1], found[2]


def _next_lines(found: Sequence[ConvertedLaunch], written: Sequence[Path]) -> Iterator[str]:
    files = " ".join(shlex.quote(str(path)) for path in written) or "FILE"
    yield f"`sparkfleet plan {files}` shows if it runs, how fast, and what is known to break"
    for one in found:
        yield f"`sparkfleet plan {one.deployment.model}` shows what is chosen for the model if all is left open"
