"""`sparkfleet fabric`: plans and sets the addresses of the rails, and measures their speed."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, JsonOption, YesOption, run
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.apply import ROLLBACK_S, Helper, NotPermitted, apply_plan, change, find_helper
from sparkfleet.fabric.discovery import DiscoveredLinks
from sparkfleet.fabric.firewall import (
    ADDRESSES,
    FirewallRequest,
    addresses,
    closed_to_others,
    firewall_request,
    is_loaded,
    rails_of,
    rules,
)
from sparkfleet.fabric.inventory_builder import describe
from sparkfleet.fabric.measure import LinkMeasurement, measure_links, save_measurements
from sparkfleet.fabric.netplan import FabricPlan, changes, claims, plan_fabric, render
from sparkfleet.fabric.port_scan import PortScan
from sparkfleet.fabric.probe import look
from sparkfleet.fabric.rails_helper import NETPLAN_FILE
from sparkfleet.fabric.topology import find_links
from sparkfleet.hostfacts.listening_sockets import ReadSockets
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channel, open_channels
from sparkfleet.runtime.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import load_inventory

app = typer.Typer(help="The rails between the nodes: addresses and speed.", no_args_is_help=True)

RollbackOption = Annotated[
    int,
    typer.Option(
        "--rollback",
        metavar="SECONDS",
        min=10,
        max=600,
        help="Undo the change unless every node and rail works within this time.",
    ),
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0.5, max=60, help="Seconds of load on each rail.")
]


class FirewallWish(NamedTuple):
    """The options of `fabric firewall`."""

    opened: tuple[int, ...]
    apply: bool
    remove: bool
    yes: bool
    rollback_s: int
    json: bool


class Picture(NamedTuple):
    """Ports and links as they are, and the plan for them."""

    views: tuple[PortScan, ...]
    found: DiscoveredLinks
    plan: FabricPlan


@app.command("plan")
def plan(inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False) -> int:
    """Show the planned addresses of the rails, and their changes. Changes nothing."""
    return run(_plan(load_inventory(inventory), json))


@app.command("apply")
def apply(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    yes: YesOption = False,
    rollback: RollbackOption = ROLLBACK_S,
) -> int:
    """Give the rails these addresses. The change is undone by itself if a node can no longer be reached."""
    return run(_apply(load_inventory(inventory), yes, rollback))


@app.command("firewall")
def firewall(
    *,
    inventory: InventoryOption = DEFAULT_INVENTORY,
    apply: Annotated[
        bool, typer.Option("--apply", help="Load these rules on every node, also after a reboot.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the rules from every node.")] = False,
    opened: Annotated[
        list[int] | None,
        typer.Option(
            "--open", metavar="PORT", min=1, max=65535, help="A port that stays open to every machine."
        ),
    ] = None,
    yes: YesOption = False,
    rollback: RollbackOption = ROLLBACK_S,
    json: JsonOption = False,
) -> int:
    """Show the rules that close the fleet's ports to machines that are no nodes of it; with --apply, load them."""
    if apply and remove:
        raise SparkfleetError("--apply and --remove exclude each other.", do="Give one of them.")
    wanted = FirewallWish(
        tuple(opened or ()), apply=apply, remove=remove, yes=yes, rollback_s=rollback, json=json
    )
    return run(_firewall(load_inventory(inventory), wanted))


@app.command("measure")
def measure(
    inventory: InventoryOption = DEFAULT_INVENTORY, seconds: SecondsOption = 3.0, json: JsonOption = False
) -> int:
    """Measure every rail, prove that the bytes take it and no other way, and keep the numbers for `plan`."""
    return run(_measure(load_inventory(inventory), seconds, json))


async def _plan(inventory: Inventory, json: bool) -> int:
    channels = open_channels(inventory)
    try:
        picture = await _picture(channels)
        helpers = await _helpers(channels)
    finally:
        await _close(channels)
    if json:
        print_json({"version": OUTPUT_VERSION} | _as_json(picture, helpers))
    else:
        _show(picture, helpers)
    return Exit.PENDING if _pending(picture) else Exit.DONE


async def _apply(inventory: Inventory, yes: bool, rollback_s: int) -> int:
    channels = open_channels(inventory)
    try:
        picture = await _picture(channels)
        if not _pending(picture):
            _show_links(picture)
            if picture.found.links:
                console.print("No change: every rail has its address.")
            return Exit.DONE
        helpers = await _helpers(channels)
        _show(picture, helpers)
        if missing := [error for error in helpers.values() if isinstance(error, NotPermitted)]:
            raise _together(missing)
        confirm(
            f"Apply? Links go down for a moment; the change is undone unless everything works within {rollback_s} s.",
            yes,
        )
        return await _carry_out(inventory, picture.plan, _granted(helpers), channels, rollback_s)
    finally:
        await _close(channels)


async def _carry_out(
    inventory: Inventory,
    plan: FabricPlan,
    helpers: Mapping[str, Helper],
    channels: Mapping[str, Channel],
    rollback_s: int,
) -> int:
    async def reopen(node: str) -> Channel:
        return open_channel(node, inventory.nodes[node])

    applied = await apply_plan(plan, helpers, channels, reopen, rollback_s=rollback_s)
    if not applied.kept:
        raise SparkfleetError(
            "The change was undone.\n" + "\n".join(applied.problems),
            means="The rails have their previous addresses.",
            do="Check the cables and the firewalls on the rails (`sudo ufw allow in on NETDEV`), then try again.",
        )
    if any(helper.backend == "ip" for helper in helpers.values()):
        console.print("A node without netplan loses these addresses when it reboots.")
    console.print("Kept: every node can be reached, and every rail carries full-size packets.")
    console.print("Next: `sparkfleet init` writes the links into the inventory.")
    return Exit.DONE


async def _firewall(inventory: Inventory, wish: FirewallWish) -> int:
    channels = open_channels(inventory)
    try:
        helpers = await _helpers(channels)
        requests = (
            {node: {} for node in channels}
            if wish.remove
            else await _wanted(inventory, channels, wish.opened)
        )
        pending = [node for node in channels if _differs(helpers[node], requests[node])]
        if wish.json:
            print_json({"version": OUTPUT_VERSION, "nodes": _firewall_json(helpers, requests)})
        else:
            await _show_firewall(channels, helpers, requests)
        if not pending or not (wish.apply or wish.remove):
            return Exit.PENDING if pending else Exit.DONE
        granted = _able(helpers, remove=wish.remove)
        confirm(f"Apply? It is undone unless every node can be reached within {wish.rollback_s} s.", wish.yes)
        return await _load(
            inventory, {node: requests[node] for node in pending}, granted, channels, wish.rollback_s
        )
    finally:
        await _close(channels)


async def _wanted(
    inventory: Inventory, channels: Mapping[str, Channel], opened: Sequence[int]
) -> dict[str, FirewallRequest]:
    answers = await asyncio.gather(*(channel.run(ADDRESSES) for channel in channels.values()))
    known = {
        node: addresses(answer.stdout, rails_of(inventory, node))
        for node, answer in zip(channels, answers, strict=True)
    }
    if unknown := [node for node, found in known.items() if not found]:
        raise SparkfleetError(
            f"The addresses of {', '.join(unknown)} could not be read.",
            means="A firewall without them would cut the nodes off from each other.",
            do=f"Run `{' '.join(ADDRESSES)}` there.",
        )
    return {node: firewall_request(inventory, node, known, opened) for node in channels}


def _able(helpers: Mapping[str, Helper | NotPermitted], *, remove: bool) -> dict[str, Helper]:
    if missing := [error for error in helpers.values() if isinstance(error, NotPermitted)]:
        raise _together(missing)
    granted = _granted(helpers)
    if without := [node for node, helper in granted.items() if not (helper.nft or remove)]:
        raise SparkfleetError(
            f"{', '.join(without)}: nftables are not installed.",
            do="Run there: sudo apt-get install nftables",
        )
    return granted


async def _load(
    inventory: Inventory,
    requests: Mapping[str, FirewallRequest],
    helpers: Mapping[str, Helper],
    channels: Mapping[str, Channel],
    rollback_s: int,
) -> int:
    async def reopen(node: str) -> Channel:
        return open_channel(node, inventory.nodes[node])

    async def reached(_: Mapping[str, Channel]) -> list[str]:
        return []  # the new connections are the check

    done = await change(
        ("firewall", requests), helpers, channels, reopen, check=reached, rollback_s=rollback_s
    )
    if not done.kept:
        raise SparkfleetError(
            "The change was undone.\n" + "\n".join(done.problems),
            means="The nodes have their previous rules.",
            do="Check that each node can be reached, then try again.",
        )
    console.print(f"Kept: every node can be reached. {', '.join(requests)} changed.")
    return Exit.DONE


def _differs(helper: Helper | NotPermitted, request: FirewallRequest) -> bool:
    """True if the loaded table is not the wanted one. What cannot be read counts as different."""
    if not isinstance(helper, Helper):
        return True
    return not is_loaded(helper.firewall, request)


def _firewall_json(
    helpers: Mapping[str, Helper | NotPermitted], requests: Mapping[str, FirewallRequest]
) -> dict[str, object]:
    return {
        node: {
            "rules": rules(request) if request else "",
            "loaded": helper.firewall if isinstance(helper := helpers[node], Helper) else "",
            "differs": _differs(helpers[node], request),
            "not_permitted": helper.what if isinstance(helper, NotPermitted) else "",
        }
        for node, request in requests.items()
    }


async def _show_firewall(
    channels: Mapping[str, Channel],
    helpers: Mapping[str, Helper | NotPermitted],
    requests: Mapping[str, FirewallRequest],
) -> None:
    for node, request in requests.items():
        differs = _differs(helpers[node], request)
        console.print(Text(f"\n{node}  {'' if differs else 'no change'}", "bold"))
        if isinstance(helper := helpers[node], NotPermitted):
            console.print(Text(f"  {helper.what}", "yellow"))
        if not differs:
            continue
        console.print(Text(_indented(rules(request)) if request else "    no rules of sparkfleet"))
        if request:
            sockets = ReadSockets.parse((await channels[node].run(ReadSockets.argv)).stdout)
            if closed := closed_to_others(sockets, request):
                console.print(Text(f"  closed to other machines now: {', '.join(closed)}", "yellow"))


async def _picture(channels: Mapping[str, Channel]) -> Picture:
    views = await look(channels)
    found = find_links(views)
    return Picture(views, found, plan_fabric(found, views))


def _pending(picture: Picture) -> bool:
    return any(changes(picture.plan.of(view.node), view) for view in picture.views)


async def _helpers(channels: Mapping[str, Channel]) -> dict[str, Helper | NotPermitted]:
    async def one(channel: Channel) -> Helper | NotPermitted:
        try:
            return await find_helper(channel)
        except NotPermitted as error:
            return error

    found = await asyncio.gather(*(one(channel) for channel in channels.values()))
    return dict(zip(channels, found, strict=True))


def _granted(helpers: Mapping[str, Helper | NotPermitted]) -> dict[str, Helper]:
    return {name: helper for name, helper in helpers.items() if isinstance(helper, Helper)}


def _together(errors: Sequence[NotPermitted]) -> NotPermitted:
    return NotPermitted(
        "\n".join(error.what for error in errors),
        means=errors[0].means,
        do="\n".join(error.do for error in errors),
    )


def _show_links(picture: Picture) -> None:
    for link in picture.found.links:
        console.print(Text(f"{describe(link)}: {len(link.rails)} rails"))
    if not picture.found.links:
        console.print("No cable was found between nodes of the inventory, so no rail needs an address.")
    for finding in picture.found.findings:
        console.print(Text(f"  {finding}", "yellow"))


def _as_json(picture: Picture, helpers: Mapping[str, Helper | NotPermitted]) -> dict[str, object]:
    """JSON document of `fabric plan`."""
    return picture.found.model_dump(mode="json") | {
        "nodes": {
            view.node: {
                "ports": [port.model_dump(mode="json") for port in picture.plan.of(view.node).ports],
                "changes": list(changes(picture.plan.of(view.node), view)),
                "not_permitted": error.what if isinstance(error := helpers[view.node], NotPermitted) else "",
            }
            for view in picture.views
        },
    }


def _show(picture: Picture, helpers: Mapping[str, Helper | NotPermitted]) -> None:
    _show_links(picture)
    for view in picture.views:
        _show_node(picture.plan, view, helpers[view.node])


def _show_node(plan: FabricPlan, view: PortScan, helper: Helper | NotPermitted) -> None:
    mine = plan.of(view.node)
    if not mine.ports:
        return
    pending = changes(mine, view)
    console.print(Text(f"\n{view.node}  {'' if pending else 'no change'}", "bold"))
    for line in pending:
        console.print(Text(f"  {line}"))
    if not isinstance(helper, Helper) or helper.backend != "netplan":
        if pending:
            console.print(Text(f"  {NETPLAN_FILE}:\n{_indented(render(mine))}"))
        return
    before = helper.own
    for line in difflib.unified_diff(
        before.splitlines(), render(mine).splitlines(), str(NETPLAN_FILE), "new", lineterm=""
    ):
        console.print(Text(f"  {line}", {"+": "green", "-": "red"}.get(line[:1], "")))
    for claim in claims(helper.others, (port.netdev for port in mine.ports)):
        console.print(Text(f"  {claim}", "yellow"))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


async def _measure(inventory: Inventory, seconds: float, json: bool) -> int:
    if not inventory.links:
        raise SparkfleetError(
            "The inventory has no links.", do="`sparkfleet init` finds the cables and writes them."
        )
    channels = open_channels(inventory)
    try:
        measured = await measure_links(inventory, channels, seconds=seconds)
    finally:
        await _close(channels)
    file = save_measurements(FleetPaths.default(inventory.fleet).links, measured)
    if json:
        print_json({"version": OUTPUT_VERSION, "links": [one.model_dump(mode="json") for one in measured]})
    else:
        _show_measured(measured)
        console.print(f"Kept in {file} for `sparkfleet plan`.")
    return Exit.DONE if all(one.proof.holds for one in measured) else Exit.ERROR


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


async def _close(channels: Mapping[str, Channel]) -> None:
    await asyncio.gather(*(channel.close() for channel in channels.values()))
