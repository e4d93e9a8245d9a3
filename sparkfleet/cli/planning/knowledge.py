"""`sparkfleet knowledge`: the age of the knowledge that plans are made from."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import JsonOption
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.knowledge.parts import GUIDE
from sparkfleet.staging.connection_variables import check_connection_variables, check_endpoint_variable

if TYPE_CHECKING:
    from sparkfleet.fleet.knowledge.status import PartStatus

app = typer.Typer(help="The knowledge that plans are made from: its age, part by part.", no_args_is_help=True)


@app.command("status")
def status(
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Contact neither the package index nor the Hub.")
    ] = False,
    index: Annotated[
        str,
        typer.Option(
            "--index",
            help="Address of a package index, instead of pip's own.",
            metavar="URL",
            show_default=False,
        ),
    ] = "",
    json: JsonOption = False,
) -> int:
    """Show each part of the knowledge: entries, age, and what is newer upstream. Changes nothing."""
    # Before the import, in which huggingface_hub reads HF_ENDPOINT.
    check_endpoint_variable() if offline else check_connection_variables()
    from sparkfleet.fleet.knowledge.status import knowledge_status  # a slow import

    found = knowledge_status(date.today(), offline=offline, index=index)
    if json:
        print_json({"version": OUTPUT_VERSION, "parts": [_values(one) for one in found]})
    else:
        _show(found, offline=offline)
    return Exit.DONE


def _values(one: PartStatus) -> dict[str, object]:
    return {
        **one.part.model_dump(include={"id", "file", "entries", "newest", "fresh_days"}),
        "age_days": one.age_days,
        "old": one.old,
        "upstream": one.upstream,
        "news": list(one.news),
    }


def _show(found: tuple[PartStatus, ...], *, offline: bool) -> None:
    console.print(
        _line("PART", "ENTRIES", "NEWEST", "AGE", "" if offline else "UPSTREAM"), markup=False, style="dim"
    )
    for one in found:
        age = "–" if one.age_days is None else f"{one.age_days} d"
        upstream = "; ".join(one.news) or ("" if one.upstream == "not asked" else "nothing newer")
        line = _line(one.part.id, str(one.part.entries), one.part.newest or "–", age, upstream)
        console.print(line, markup=False, style="yellow" if one.old else None)
    for one in found:
        if one.old:
            console.print(
                f"{one.part.id}: {one.age_days} days old, more than {one.part.fresh_days}: {one.part.do} ({GUIDE}).",
                markup=False,
            )
    if offline:
        console.print("Upstream was not asked (--offline).")


def _line(part: str, entries: str, newest: str, age: str, upstream: str) -> str:
    return f"{part:<13} {entries:>7}  {newest:<10} {age:>6}  {upstream}".rstrip()
