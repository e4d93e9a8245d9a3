"""`sparkfleet suggest`: the models that Sparks can serve, and how fast."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json, print_line
from sparkfleet.cli.planning.plan_options import SparksOption, assumed_fleet
from sparkfleet.fleet.planning.plan import fleet_of
from sparkfleet.fleet.planning.suggestions import (
    LEAST_BITS,
    ModelRequirements,
    Suggestion,
    Suggestions,
    suggestions,
)
from sparkfleet.planner.report.explain.layout import band_ends
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import NoFile
from sparkfleet.units import gib, plural, three_digits

NARROW = 110
"""Columns of a terminal below which a table has fewer of its own."""
READING_TPS = 10.0
"""Tokens per second of one request below which a model is left out, a choice: about twice as fast as most people read, 238
words a minute (Brysbaert 2019, https://doi.org/10.1016/j.jml.2019.104047), as half of an answer is often its thinking."""


class ObjectiveName(StrEnum):
    """`objective` of a deployment."""

    INTERACTIVE = "interactive"
    THROUGHPUT = "throughput"
    CONTEXT = "context"


class NeedName(StrEnum):
    """An element of `needs` of a deployment."""

    VISION = "vision"
    TOOLS = "tools"


def suggest(  # noqa: PLR0917  # its parameters are the command line's
    sparks: SparksOption = None,
    objective: Annotated[
        ObjectiveName, typer.Option("--objective", help="The aim, as in a deployment.")
    ] = ObjectiveName.INTERACTIVE,
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Tokens of the longest request.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Requests at once.", show_default=False)
    ] = None,
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
        typer.Option("--all", help="Show every published checkpoint, not the fastest of each model alone."),
    ] = False,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """List models that Sparks can serve, each alone, with their predicted speed. Contacts nothing."""
    wanted = ModelRequirements(
        objective=objective.value,
        context=context,
        concurrency=concurrency,
        needs=tuple(dict.fromkeys(one.value for one in needs)),
        license="open" if open_license else "any",
    )
    fleet, assumed = assumed_fleet(inventory, None, sparks)
    return run(_suggest(fleet, assumed or "dgx-spark", wanted, at_least, every=everything, as_json=json))


async def _suggest(
    inventory: Path | Inventory,
    assumed: str,
    wanted: ModelRequirements,
    at_least: float,
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
    console.print(suggestion_table(shown, wanted, narrow=console.width < NARROW))
    on = (
        f"--sparks {len(fleet.nodes)}"
        if isinstance(inventory, Inventory)
        else f"-i {shlex.quote(str(inventory))}"
    )
    for line in _notes(found, shown, at_least, on):
        print_line(line)
    return Exit.DONE


def suggestion_table(
    shown: Sequence[Suggestion], wanted: ModelRequirements, *, narrow: bool = False
) -> Table:
    """The models with their size, place and speed, and if there is room for it with their memory and context."""
    many = wanted.objective == "throughput"
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("MODEL", overflow="fold")
    rate = "TOK/S TOGETHER" if many else "TOK/S"
    for heading in ("SIZE", "RUNS AS", rate, *(() if narrow else ("MEMORY", "CONTEXT"))):
        table.add_column(heading)
    for one in shown:
        candidate, predicted = one.rung.candidate, one.rung.prediction
        band = predicted.decode_tps_aggregate if many else predicted.decode_tps_per_request
        published = one.rung.published.exactly
        ends = f" ({band_ends(band)})" if band is not None and one.groups == 1 else ""
        speed = f"{three_digits(one.tps)}{ends}" if one.tps else "not predicted"
        if published and not many:
            speed += f", published {three_digits(published)}"
        room = (
            gib(round(predicted.memory_bytes_per_rank.mid)),
            f"{candidate.context} × {candidate.concurrency}",
        )
        table.add_row(one.model, _size(one), _how(one), speed, *(() if narrow else room))
    return table


def _size(one: Suggestion) -> str:
    """`117B, 5.1B active`; the second if it is less."""
    total, active = one.parameters / 1e9, one.active_parameters / 1e9
    return f"{three_digits(total)}B" + (f", {active:.2g}B active" if active < 0.8 * total else "")


def _how(one: Suggestion) -> str:
    """`TP=2 · vLLM · NVFP4 · MTP k=3`, without what only a plan needs."""
    candidate = one.rung.candidate
    speculation = candidate.speculation
    drafts = "" if speculation.method == "none" else str(speculation).partition(" (")[0]
    replicas = f"{one.groups} replicas" if one.groups > 1 else ""
    parts = (
        str(candidate.shape.split),
        ENGINE_LABELS[candidate.engine],
        candidate.quant.upper(),
        drafts,
        replicas,
    )
    return " · ".join(part for part in parts if part)


def _notes(found: Suggestions, shown: Sequence[Suggestion], at_least: float, on: str) -> Iterator[str]:
    yield ""
    if slower := len(found.found) - len(shown):
        yield f"{plural(slower, 'model')} below {at_least:g} tok/s left out: `--at-least 0` shows all."
    if few := [one.model for one in shown if one.bits < LEAST_BITS]:
        yield f"In fewer than {LEAST_BITS:g} bits, as nothing else of the model fits: {', '.join(few)}."
    if found.not_served:
        names = ", ".join(found.not_served)
        yield f"Not served so: {names}. `sparkfleet plan MODEL {on}` has the reason."
    yield (
        "The largest first: nothing here measures the quality of answers. Speeds are predicted, memory is that of each node."
    )
    if shown:
        yield f"next: `sparkfleet plan {shown[0].model} {on}` has the reasons. Other models are planned by their names, too."
