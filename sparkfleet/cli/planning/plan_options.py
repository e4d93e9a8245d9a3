"""Arguments of `plan` and `apply`: files, models, and nodes that are assumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.planning.next_commands import is_default
from sparkfleet.errors import SpecError
from sparkfleet.fleet.nodes.assumed import MOST_SPARKS, assumed_inventory
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import NoFile


def _file(text: str) -> Path:
    """A file of a command line. An empty word is refused: as a path it would be the whole directory."""
    if not text:
        raise typer.BadParameter("an empty name, such as that of a variable of the shell that is not set.")
    return Path(text)


FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        parser=_file,
        help="Deployment files, or models of the Hub (org/name); a directory: all files in it; -: standard input.",
        metavar="FILE|MODEL",
        show_default=False,
    ),
]
FileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", parser=_file, metavar="FILE", help="The same as FILE. Repeatable.", show_default=False
    ),
]
AssumeOption = Annotated[
    str | None,
    typer.Option(
        "--assume",
        metavar="KIND[,…]|FILE",
        help="Plan without contacting the nodes: as if each were a `dgx-spark` or `dgx-spark-64` (64 GB); with the kind of"
        " each, as `dgx-spark,dgx-spark-64`; or from a file of facts.",
    ),
]
SparksOption = Annotated[
    int | None,
    typer.Option(
        "--sparks",
        min=1,
        max=MOST_SPARKS,
        metavar="N",
        help="Plan for N idle Sparks, which you need not have, in place of an inventory; of 128 GB without --assume.",
    ),
]

DEFAULT_KIND = "dgx-spark"
"""The kind of Spark that is assumed if none is named: of 128 GB."""


def assumed_fleet(
    inventory: Path, assumed: str | None, sparks: int | None
) -> tuple[Path | Inventory, str | None]:
    """The inventory of a command line, and what its nodes are assumed to be. `--sparks` replaces both.

    Raises:
        SpecError: `--sparks` is given with an inventory, or with a file of facts.
    """
    if sparks is None:
        return inventory, assumed
    if not is_default(inventory):
        raise SpecError(
            "`--sparks` and `--inventory` are both given.",
            do="`--sparks N` plans for Sparks that are in no inventory; `--assume dgx-spark` for those of one.",
        )
    return assumed_inventory(sparks), assumed or DEFAULT_KIND


def without_owner(given: Path) -> list[str]:
    """Published models that somebody may mean who typed this without the name of the owner; none if it is a file."""
    if (
        len(given.parts) != 1
        or given.suffix in (".yaml", ".yml")
        or given == Path("-")
        or os.path.exists(given)
    ):
        return []
    from sparkfleet.fleet.planning.published_names import (
        near_without_owner,
    )  # reads tables, for this error only

    return near_without_owner(given.name)


def given_files(verb: str, files: Sequence[Path] | None, more: Sequence[Path] | None) -> list[Path]:
    """The files of a command line. Raises SpecError if there are none, NoFile for a model without its owner."""
    given = [*(files or ()), *(more or ())]
    for one in given:
        if meant := without_owner(one):
            commands = ", ".join(f"`sparkfleet {verb} {model}`" for model in meant)
            raise NoFile(
                f"{one}: no such file, and a model of the Hub has the name of its owner.",
                do=f"Did you mean {commands}?",
            )
    if not given:
        raise SpecError(
            "No deployment's file and no model is given.",
            do=f"`sparkfleet {verb} FILE`; a directory means all files in it, `-` for standard input."
            f"\n`sparkfleet {verb} ORG/MODEL` leaves everything but the model open.",
        )
    return given
