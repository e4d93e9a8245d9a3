"""`sparkfleet doctor`: finds faults of nodes and cables, with their meaning and the command to type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, open_session, run
from sparkfleet.cli.output import console, errors, print_error, print_json
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.report import DoctorReport, lines
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import load_deployments

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
        help="Deployments whose weights must fit on the disks. Default: those that the fleet serves.",
    ),
]


def doctor(  # noqa: PLR0917  # its parameters are the command line's
    nodes: NodesArgument = None,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    deployments: ForOption = None,
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Send nothing over the links.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show checks without a fault.")] = False,
    json: JsonOption = False,
) -> int:
    """Check nodes and links: each fault with its meaning and its remedy. Changes nothing. Exit code 1 on an error."""
    specs = load_deployments(deployments or [])
    session = open_session(inventory)
    if not json:
        console.print(_subject(session.inventory, nodes or ()), markup=False)
    from sparkfleet.fleet.doctor import examine_fleet  # the checks take longer to load than the line above

    examined = run(examine_fleet(session, nodes or (), specs, measure=not no_measure))
    for error in examined.unsized:
        print_error(error)
    report = examined.report
    if json:
        print_json(report.as_json())
    else:
        _print(report, everything)
    return Exit.ERROR if report.failed else Exit.DONE


def _subject(inventory: Inventory, nodes: Sequence[str]) -> str:
    """The nodes and links that are checked. It is printed first: a node has 30 s for each of its answers."""
    inventory.require_nodes(nodes)
    chosen = nodes or tuple(inventory.nodes)
    links = sum(set(link.nodes) <= set(chosen) for link in inventory.links)
    counts = (
        f"{len(set(chosen))} of {len(inventory.nodes)} nodes",
        f"{links} of {len(inventory.links)} links",
    )
    return f"Fleet {inventory.fleet}: checking {' and '.join(counts)}."


def _print(report: DoctorReport, everything: bool) -> None:
    for severity, line in lines(report, everything=everything):
        style = (
            "bold"
            if severity is None and line and not line.startswith(" ")
            else STYLES.get(severity or Severity.OK)
        )
        console.print(line, style=style if severity or style == "bold" else None, markup=False)
    (errors if report.failed else console).print(f"{report.summary}.", markup=False)
