"""`sparkfleet bench`: measures a deployment's speed, beside its prediction, and keeps it for further plans."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Annotated

import typer

from sparkfleet.cli.clients.ask import KeyOption, key_of
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    NameArgument,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, errors, print_json
from sparkfleet.controlplane.state.tables.bench_table import BenchLoad
from sparkfleet.controlplane.views.bench_words import LoadBands, bands_of, load_words, speed_words
from sparkfleet.fleet.clients.bench import Bench, BenchGroups
from sparkfleet.fleet.clients.bench import bench as measure

ConcurrencyOption = Annotated[
    list[int],
    typer.Option(
        "--concurrency",
        min=1,
        help="Requests at once on each group; may be given several times. Left out: 1, and as many as it was planned for.",
        show_default=False,
    ),
]
PromptOption = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens", min=1, help="Tokens of a prompt. Left out: 2048, as predicted.", show_default=False
    ),
]
AnswerOption = Annotated[
    int | None,
    typer.Option(
        "--answer-tokens",
        min=32,
        help="Tokens of an answer. Left out: 256, as predicted.",
        show_default=False,
    ),
]


def bench(  # noqa: PLR0917  # its parameters are the command line's
    name: NameArgument,
    concurrency: ConcurrencyOption = [],  # noqa: B006 (typer reads the default and changes nothing)
    prompt_tokens: PromptOption = None,
    answer_tokens: AnswerOption = None,
    key: KeyOption = "",
    inventory: InventoryOption = DEFAULT_INVENTORY,
    json: JsonOption = False,
) -> int:
    """Measure a deployment's TTFT and tok/s over the endpoint, beside what its plan predicted. Further plans use it."""
    measuring = measure(
        open_session(inventory),
        name,
        key_of(key),
        concurrency=concurrency,
        prompt=prompt_tokens,
        answer=answer_tokens,
        on_load=lambda words: errors.print(words, style="dim"),
    )
    return run(_bench(name, measuring, json))


async def _bench(name: str, measuring: Coroutine[object, object, Bench], json: bool) -> int:
    found = await measuring
    if json:
        print_json(_as_json(name, found))
    else:
        for line in lines(name, found):
            console.print(line, markup=False)
    return Exit.DONE


def lines(name: str, found: Bench) -> Iterator[str]:
    """The result for a person."""
    groups = found.groups
    what = f"{groups.number} groups at unlike rungs"
    if groups.rung is not None:
        candidate = groups.rung.candidate
        what = str(candidate) if groups.number == 1 else f"each of {groups.number} groups · {candidate.how}"
    yield f"{name}   {what}"
    for one in found.measured:
        yield f"  {load_words(one.load):<12}{speed_words(one, _bands(groups, one.load))}"
    yield f"  {_outcome(name, found)}"


def _bands(groups: BenchGroups, load: BenchLoad) -> LoadBands:
    return LoadBands() if groups.rung is None else bands_of(groups.rung.prediction, load)


def _outcome(name: str, found: Bench) -> str:
    if found.disturbed:
        return f"Not kept: {found.disturbed} ran meanwhile. The same command again when the fleet is idle."
    if not found.kept:
        return "Not kept: its groups are at unlike rungs; `sparkfleet status` shows them."
    rung = found.groups.rung
    if rung is not None and rung.candidate.device == "cpu":
        return f"Kept: `sparkfleet describe {name}` shows it. No speed is predicted for CPUs."
    return f"Kept: the next plans for this model begin with it, and `sparkfleet describe {name}` shows it."


def _as_json(name: str, found: Bench) -> dict[str, object]:
    return {
        "version": OUTPUT_VERSION,
        "deployment": name,
        "groups": found.groups.number,
        "setup": setup.model_dump(mode="json") if (setup := found.groups.setup) is not None else None,
        "loads": [
            {
                **one.load.model_dump(mode="json"),
                "rounds": one.rounds,
                "ttft_ms": one.ttft_ms,
                "request_tps": one.request_tps,
                "group_tps": one.group_tps,
                "predicted": {
                    field: None if band is None else {"low": band.low, "mid": band.mid, "high": band.high}
                    for field, band in _bands(found.groups, one.load)._asdict().items()
                },
            }
            for one in found.measured
        ],
        "disturbed": found.disturbed,
        "kept": found.kept,
    }
