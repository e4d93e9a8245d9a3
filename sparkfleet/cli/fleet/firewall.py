"""`sparkfleet fabric firewall`: shows the rules that close the fleet's ports to other machines, and loads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.apply import ROLLBACK_S
from sparkfleet.fabric.firewall import rules
from sparkfleet.fleet.session import Session
from sparkfleet.fleet.setup.firewall import (
    FirewallPlan,
    closed_now,
    firewall_helpers,
    load_firewall,
    loaded,
    not_permitted,
    plan_firewall,
)
from sparkfleet.remote.channel import Channel

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


class FirewallWish(NamedTuple):
    """The options of `fabric firewall`."""

    opened: tuple[int, ...]
    apply: bool
    remove: bool
    yes: bool
    rollback_s: int
    json: bool


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
    wish = FirewallWish(
        tuple(opened or ()), apply=apply, remove=remove, yes=yes, rollback_s=rollback, json=json
    )
    return run(_firewall(open_session(inventory), wish))


async def _firewall(session: Session, wish: FirewallWish) -> int:
    inventory, channels = session.inventory, session.channels
    plan = await plan_firewall(inventory, channels, opened=wish.opened, remove=wish.remove)
    if wish.json:
        print_json({"version": OUTPUT_VERSION, "nodes": _as_json(plan)})
    else:
        await _show(channels, plan)
    if not plan.pending or not (wish.apply or wish.remove):
        return Exit.PENDING if plan.pending else Exit.DONE
    helpers = firewall_helpers(plan, remove=wish.remove)
    confirm(f"Apply? It is undone unless every node can be reached within {wish.rollback_s} s.", wish.yes)
    changed = await load_firewall(inventory, plan, helpers, channels, wish.rollback_s)
    console.print(f"Kept: every node can be reached. {', '.join(changed)} changed.")
    return Exit.DONE


def _as_json(plan: FirewallPlan) -> dict[str, object]:
    return {
        node: {
            "rules": rules(request) if request else "",
            "loaded": loaded(plan, node),
            "differs": plan.differs(node),
            "not_permitted": not_permitted(plan, node),
        }
        for node, request in plan.requests.items()
    }


async def _show(channels: Mapping[str, Channel], plan: FirewallPlan) -> None:
    unchanged: list[str] = []
    for node, request in plan.requests.items():
        differs, reason = plan.differs(node), not_permitted(plan, node)
        if not differs and not reason:
            unchanged.append(node)
            continue
        console.print(Text(f"\n{node}  {'' if differs else 'no change'}", "bold"))
        if reason:
            console.print(Text(f"  {reason}", "yellow"))
        if not differs:
            continue
        console.print(Text(_indented(rules(request)) if request else "    no rules of sparkfleet"))
        if request and (closed := await closed_now(channels[node], request)):
            console.print(Text(f"  closed to other machines now: {', '.join(closed)}", "yellow"))
    if unchanged:
        console.print(Text(f"\n{', '.join(unchanged)}  no change", "bold"))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
