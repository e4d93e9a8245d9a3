"""`sparkfleet doctor`: what is wrong with the nodes and the cables, what it means, and what to type."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

import sparkfleet
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import console, errors, print_error, print_json
from sparkfleet.control.paths import FleetPaths
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.gather import gather, with_context
from sparkfleet.doctor.gathered import FleetView, Needed, PathView
from sparkfleet.doctor.measure import measure_paths
from sparkfleet.doctor.registry import examine
from sparkfleet.doctor.report import Report, lines
from sparkfleet.errors import FactError, SparkfleetError, SpecError
from sparkfleet.fabric.measure import save_measurements
from sparkfleet.fleet.checkpoints import Found, models_of, places_of, search
from sparkfleet.fleet.session import Session
from sparkfleet.spec.deployment import Deployment
from sparkfleet.spec.fields import unknown
from sparkfleet.spec.load import load_deployments

STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.UNKNOWN: "dim",
    Severity.INFO: "cyan",
    Severity.OK: "green",
}

NodesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Only these nodes, and the links between them.", metavar="NODE", show_default=False),
]
ForOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--for",
        metavar="FILE",
        help="Deployments whose weights must fit; left out: what the fleet serves.",
    ),
]


def doctor(  # noqa: PLR0917  # its parameters are the command line's
    nodes: NodesArgument = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    deployments: ForOption = None,
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Send nothing over the links.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show what is fine.")] = False,
    json: JsonOption = False,
) -> int:
    """Check nodes and links; say what is wrong, what it means and what to do. Changes nothing. Exit code 1 on an error."""
    report = run(_doctor(open_session(inventory), nodes or [], deployments or [], measure=not no_measure))
    if json:
        print_json(report.as_json())
    else:
        _print(report, everything)
    return Exit.ERROR if report.failed else Exit.DONE


async def _doctor(session: Session, nodes: list[str], deployments: list[Path], *, measure: bool) -> Report:
    for name in nodes:
        if name not in session.inventory.nodes:
            raise SpecError(unknown("node", name, session.inventory.nodes))
    fleet, needed = await asyncio.gather(
        gather(session.inventory, session.channels, nodes=nodes), _needs(session, nodes, deployments)
    )
    paths = await _measure(session, fleet) if measure else None
    return report_of(with_context(fleet, sparkfleet=sparkfleet.__version__, needed=needed, paths=paths))


async def _needs(session: Session, nodes: Sequence[str], files: list[Path]) -> list[Needed]:
    """The weights that must fit, told by this machine, else by the nodes that are looked at, else known by name."""
    specs = await _deployments(session, files)
    wanted = {
        model: [node for node in places_of(model, specs, session.inventory) if not nodes or node in nodes]
        for model in models_of(specs)
    }
    found = await search(wanted, session.inventory, session.channels)
    return [one for spec in specs for one in _needed(spec, found)]


async def _deployments(session: Session, files: list[Path]) -> tuple[Deployment, ...]:
    """Those that were named; else those that the fleet is to serve, where its controller answers."""
    if files:
        return tuple(load_deployments(files))
    try:
        client = await session.find_controller()
        if client is None:
            return ()
        async with client:
            status = await client.fleet()
    except SparkfleetError:  # what keeps it from answering is found by other checks
        return ()
    return tuple(Deployment.model_validate_json(one.spec) for one in status.deployments if one.spec)


async def _measure(session: Session, fleet: FleetView) -> tuple[PathView, ...]:
    """What was measured is also kept for the planner, where `sparkfleet fabric measure` keeps it."""
    measured = await measure_paths(session.inventory, fleet, session.channels)
    if measured.kept:
        save_measurements(FleetPaths.default(session.inventory.fleet).links, measured.kept)
    return measured.paths


def report_of(fleet: FleetView) -> Report:
    """What is to be said of a fleet."""
    return Report.of(fleet.name, examine(fleet))


def _needed(spec: Deployment, found: Mapping[str, Found]) -> Iterator[Needed]:
    """The weights of a deployment. A model whose size cannot be told is said so and left out."""
    for variant in spec.resolved():
        if variant.model not in models_of([spec]):
            continue
        checkpoint = found[variant.model]
        if isinstance(checkpoint, FactError):
            print_error(checkpoint)
            continue
        yield Needed(
            deployment=spec.name,
            model=variant.model.partition("@")[0],
            weights_bytes=checkpoint.bytes_on_disk,
            nodes=tuple(variant.nodes or spec.nodes),
        )


def _print(report: Report, everything: bool) -> None:
    for severity, line in lines(report, everything=everything):
        style = (
            "bold"
            if severity is None and line and not line.startswith(" ")
            else STYLES.get(severity or Severity.OK)
        )
        console.print(line, style=style if severity or style == "bold" else None, markup=False)
    (errors if report.failed else console).print(f"{report.summary}.", markup=False)
