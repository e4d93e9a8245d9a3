"""`sparkfleet suggest`: the models that Sparks can serve, and how fast."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, errors, print_json, print_line
from sparkfleet.cli.planning.model_options import (
    ConcurrencyOption,
    ContentOption,
    ContextOption,
    ModelOptions,
    ObjectiveOption,
)
from sparkfleet.cli.planning.plan_options import DEFAULT_KIND, AssumeOption, SparksOption, assumed_fleet
from sparkfleet.cli.planning.suggestion_table import print_suggestions
from sparkfleet.fleet.planning.plan import fleet_of
from sparkfleet.fleet.planning.suggestions import (
    LEAST_BITS,
    ModelRequirements,
    Suggestion,
    Suggestions,
    suggestions,
)
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import NoFile
from sparkfleet.units import plural

READING_TPS = 10.0
"""Tokens per second of one request below which a model is left out, a choice: about twice as fast as most people read, 238
words a minute (Brysbaert 2019, https://doi.org/10.1016/j.jml.2019.104047), as half of an answer is often its thinking."""


class NeedName(StrEnum):
    """An element of `needs` of a deployment."""

    VISION = "vision"
    TOOLS = "tools"


def suggest(  # noqa: PLR0917  # its parameters are the command line's
    sparks: SparksOption = None,
    assumed: AssumeOption = None,
    context: ContextOption = None,
    concurrency: ConcurrencyOption = None,
    objective: ObjectiveOption = None,
    content: ContentOption = None,
    needs: Annotated[
        list[NeedName],
        typer.Option("--needs", help="What a model has to be able to do. Repeatable.", show_default=False),
    ] = [],  # noqa: B006 (typer reads the default and changes nothing)
    open_license: Annotated[
        bool, typer.Option("--open-license", help="Only models under an open-source license.")
    ] = False,
    at_least: Annotated[
        float,
        typer.Option(
            "--at-least", min=0.0, metavar="TPS", help="Predicted tok/s below which a model is left out."
        ),
    ] = READING_TPS,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Show every published checkpoint, not the best of each model alone, and base models.",
        ),
    ] = False,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """List models that Sparks can serve, each alone, with their predicted speed. Contacts nothing."""
    options = ModelOptions(context, concurrency, objective, content)
    wanted = ModelRequirements(
        needs=tuple(dict.fromkeys(one.value for one in needs)),
        license="open" if open_license else "any",
        **options.fields,
    )
    kind = f" --assume {shlex.quote(assumed)}" if assumed else ""
    fleet, facts = assumed_fleet(inventory, assumed, sparks)
    on = f"--sparks {sparks}" if sparks else f"-i {shlex.quote(str(inventory))}"
    more = f"{on}{kind}{options.words}"
    return run(_suggest(fleet, facts or DEFAULT_KIND, wanted, at_least, more, every=everything, as_json=json))


async def _suggest(
    inventory: Path | Inventory,
    assumed: str,
    wanted: ModelRequirements,
    at_least: float,
    more: str,
    *,
    every: bool,
    as_json: bool,
) -> int:
    try:
        session = open_session(inventory)
    except NoFile as error:
        raise NoFile(
            error.what, means=error.means, do="`sparkfleet suggest --sparks 2` needs none."
        ) from None
    fleet = await fleet_of(session, assumed)
    with errors.status("Planning …") as status:
        found = suggestions(
            fleet,
            wanted,
            every=every,
            on_model=lambda done, all_: status.update(f"Planning … {done} of {all_} models"),
        )
    shown = tuple(one for one in found.found if one.tps >= at_least)
    if as_json:
        listed = [one.model_dump(mode="json", by_alias=True) for one in shown]
        print_json({"version": OUTPUT_VERSION, "suggestions": listed, "not_served": found.not_served})
        return Exit.DONE
    print_suggestions(shown, many=wanted.objective == "throughput")
    for line in _notes(found, shown, at_least, more):
        print_line(line)
    return Exit.DONE


def _notes(found: Suggestions, shown: Sequence[Suggestion], at_least: float, more: str) -> Iterator[str]:
    yield ""
    if slower := len(found.found) - len(shown):
        yield f"{plural(slower, 'model')} below {at_least:g} tok/s left out: `--at-least 0` shows all."
    if few := [one.model for one in shown if one.bits < LEAST_BITS]:
        yield f"In fewer than {LEAST_BITS:g} bits, as nothing else of the model fits: {', '.join(few)}."
    for one in shown:
        if one.is_wrong:
            yield f"Known to answer wrongly: {one.model} (`sparkfleet explain {one.rung.uncured[0]}`)."
    if found.not_served:
        names = ", ".join(found.not_served)
        yield f"Not served on these Sparks with these options: {names}. `sparkfleet plan ORG/MODEL {more}` has the reason."
    yield (
        "The largest first: nothing here measures the quality of answers. Speeds are predicted, memory is that of each node."
    )
    if shown:
        yield f"next: `sparkfleet plan {shown[0].model} {more}` has the reasons."
        yield "Other models are planned by their names, too."
