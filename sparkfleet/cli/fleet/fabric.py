"""`sparkfleet fabric`: plans and sets the addresses of the rails, and measures their speed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.fleet.firewall import RollbackOption, firewall
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.fabric.apply import ROLLBACK_S, Helper, NotPermitted
from sparkfleet.fabric.discovery import rejection_lines
from sparkfleet.fabric.inventory_builder import describe_alike
from sparkfleet.fabric.link_measurements import LinkMeasurement, UnmeasuredLink
from sparkfleet.fabric.measure import pairs_of
from sparkfleet.fabric.netplan import NodePlan, claims, render
from sparkfleet.fabric.rails_helper import NETPLAN_FILE
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.setup.rails import (
    Helpers,
    RailsPlan,
    all_helpers,
    deployments_over,
    find_helpers,
    measure_rails,
    plan_rails,
    set_rails,
)

app = typer.Typer(help="The rails between the nodes: addresses and speed.", no_args_is_help=True)

SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0.5, max=60, help="Seconds of load on each rail.")
]


@app.command("plan")
def plan(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show the planned addresses of the rails, and their changes. Changes nothing."""
    return run(_plan(open_session(inventory), json))


@app.command("apply")
def apply(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    rollback: RollbackOption = ROLLBACK_S,
) -> int:
    """Give the rails these addresses. The change is undone by itself if a node can no longer be reached."""
    return run(_apply(open_session(inventory), yes, rollback))


app.command("firewall")(firewall)


@app.command("measure")
def measure(
    inventory: InventoryOption = DEFAULT_INVENTORY, seconds: SecondsOption = 3.0, json: JsonOption = False
) -> int:
    """Measure every rail, prove that the bytes take it and no other way, and keep the numbers for `plan`."""
    return run(_measure(open_session(inventory), seconds, json))


async def _plan(session: Session, json: bool) -> int:
    planned = await plan_rails(session.channels)
    helpers = await find_helpers(session.channels)
    if json:
        print_json({"version": OUTPUT_VERSION} | _as_json(planned, helpers))
    else:
        _show(planned, helpers)
    return Exit.PENDING if planned.changed(helpers) else Exit.DONE


async def _apply(session: Session, yes: bool, rollback_s: int) -> int:
    planned = await plan_rails(session.channels)
    found = await find_helpers(session.channels)
    changed = planned.changed(found)
    if not changed:
        _show_links(planned)
        if planned.found.links:
            console.print("No change: every rail has its address.")
        return Exit.DONE
    _show(planned, found)
    helpers = all_helpers(changed)
    if over := await deployments_over(session, changed):
        console.print(
            Text(
                f"{', '.join(over)}: engines speak over these rails, and end if one goes away. `sparkfleet down` first ends"
                " them in order.",
                "yellow",
            )
        )
    confirm(
        f"Apply? Links go down for a moment; the change is undone unless everything works within {rollback_s} s.",
        yes,
    )
    await set_rails(session, planned.plan, helpers, rollback_s)
    if any(helper.backend == "ip" for helper in helpers.values()):
        console.print("A node without netplan loses these addresses when it reboots.")
    console.print("Kept: every changed node can be reached, and its rails carry full-size packets.")
    console.print("Next: `sparkfleet init` writes the links into the inventory.")
    return Exit.DONE


def _show_links(planned: RailsPlan) -> None:
    for words, link in describe_alike(planned.found.links):
        console.print(Text(f"{words}: {len(link.rails)} rail{'s' * (len(link.rails) != 1)}"))
    if not planned.found.links:
        console.print("No cable was found between nodes of the inventory, so no rail needs an address.")
    for line in rejection_lines(planned.found.findings):
        console.print(Text(f"  {line}", "yellow"))


def _as_json(planned: RailsPlan, helpers: Helpers) -> dict[str, object]:
    """JSON document of `fabric plan`."""
    return planned.found.model_dump(mode="json") | {
        "nodes": {
            view.node: {
                "ports": [port.model_dump(mode="json") for port in planned.plan.of(view.node).ports],
                "changes": list(planned.pending(view.node, helpers[view.node])),
                "not_permitted": error.what if isinstance(error := helpers[view.node], NotPermitted) else "",
            }
            for view in planned.views
        },
    }


def _show(planned: RailsPlan, helpers: Helpers) -> None:
    _show_links(planned)
    unchanged: list[str] = []
    for view in planned.views:
        mine = planned.plan.of(view.node)
        if not mine.ports:
            continue
        pending = planned.pending(view.node, helpers[view.node])
        if not pending:
            unchanged.append(view.node)
            continue
        console.print(Text(f"\n{view.node}", "bold"))
        for line in _node_lines(mine, pending, helpers[view.node]):
            console.print(line)
    if unchanged:
        console.print(Text(f"\n{', '.join(unchanged)}  no change", "bold"))


def _node_lines(mine: NodePlan, pending: Sequence[str], helper: Helper | NotPermitted) -> list[Text]:
    """Changes of a node, and those of its netplan file."""
    shown = [Text(f"  {line}") for line in pending]
    if not isinstance(helper, Helper) or helper.backend != "netplan":
        return [*shown, Text(f"  {NETPLAN_FILE}:\n{_indented(render(mine))}")]
    difference = difflib.unified_diff(
        helper.own.splitlines(), render(mine).splitlines(), str(NETPLAN_FILE), "new", lineterm=""
    )
    shown += [Text(f"  {line}", {"+": "green", "-": "red"}.get(line[:1], "")) for line in difference]
    claimed = claims(helper.others, (port.netdev for port in mine.ports))
    return [*shown, *(Text(f"  {claim}", "yellow") for claim in claimed)]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


async def _measure(session: Session, seconds: float, json: bool) -> int:
    if not json and (pairs := len(pairs_of(session.inventory))):
        console.print(
            f"Measuring {pairs} pair{'s' * (pairs != 1)} of nodes, {seconds:g} s of load each; pairs without a common"
            " node at once."
        )
    measured, unmeasured, file = await measure_rails(session, seconds)
    if json:
        print_json(
            {
                "version": OUTPUT_VERSION,
                "links": [one.model_dump(mode="json") for one in measured],
                "not_measured": [one.model_dump(mode="json") for one in unmeasured],
            }
        )
    else:
        _show_measured(measured)
        _show_unmeasured(unmeasured)
        if file is not None:
            console.print(f"Kept in {file} for `sparkfleet plan`.")
    sound = not unmeasured and all(one.proof.holds for one in measured)
    return Exit.DONE if sound else Exit.ERROR


def _show_measured(measured: Sequence[LinkMeasurement]) -> None:
    for one in measured:
        console.print(Text(" – ".join(one.nodes), "bold"))
        for rail in one.rails:
            console.print(
                Text(f"  {rail.netdev}  {rail.gb_per_s:.2f} GB/s  {rail.latency_us:.1f} µs  by {rail.method}")
            )
        console.print(
            Text(f"  together {one.gb_per_s:.2f} GB/s · {one.proof.said}", "" if one.proof.holds else "red")
        )


def _show_unmeasured(unmeasured: Sequence[UnmeasuredLink]) -> None:
    for one in unmeasured:
        console.print(Text(" – ".join(one.nodes), "bold"))
        console.print(Text(f"  not measured: {one.what}", "red"))
        if one.do:
            console.print(Text(f"  {one.do}"))
    if unmeasured:
        console.print("Next: `sparkfleet doctor` shows which cable, port or address is at fault.")
