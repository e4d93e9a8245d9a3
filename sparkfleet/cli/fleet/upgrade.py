"""`sparkfleet upgrade`: lets a running fleet run the release of this command."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkfleet import __version__
from sparkfleet.cli.confirm import confirm
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.fleet.up import WheelsOption
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    YesOption,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.progress import ProgressLine
from sparkfleet.fleet.lifecycle.upgrade import Upgraded, UpgradePlan, plan_upgrade
from sparkfleet.fleet.lifecycle.upgrade import upgrade as upgrade_fleet
from sparkfleet.fleet.session import Session
from sparkfleet.units import plural


def upgrade(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    wheels: WheelsOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Start every node again even if it has this release."),
    ] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Let the fleet run the release of this command. Engines go on; back to the former release if it does not start."""
    session = open_session(inventory, quiet=True)
    return run(_upgrade(session, wheels, force=force, yes=yes, json=json))


async def _upgrade(session: Session, wheels: WheelsOption, *, force: bool, yes: bool, json: bool) -> int:
    plan = await plan_upgrade(session)
    confirm(_question(session, plan), yes)
    with ProgressLine(quiet=json) as progress:
        done = await upgrade_fleet(session, plan, progress, wheels, force=force)
    if json:
        print_json({"version": OUTPUT_VERSION, "fleet": session.inventory.fleet, **_document(done)})
        return Exit.DONE
    for line in _lines(done, len(session.inventory.nodes), session.inventory.environment):
        console.print(line, markup=False)
    return Exit.DONE


def _question(session: Session, plan: UpgradePlan) -> str:
    fleet, nodes = session.inventory.fleet, len(session.inventory.nodes)
    on = f"on {plural(nodes, 'node')}"
    asked = (
        f"Fleet {fleet} runs sparkfleet {__version__} already. Change to this build of it {on}, if theirs is another one?"
        if plan.former == __version__
        else f"Upgrade fleet {fleet} from sparkfleet {plan.former or '?'} to {__version__} {on}?"
    )
    return (
        f"{asked} Engines go on ({len(plan.ready)} ready); the endpoint is away for"
        f" about 15 s, and streams that are open then end.{_unloads(plan)}"
    )


def _unloads(plan: UpgradePlan) -> str:
    if not plan.loaded:
        return ""
    are = "is on demand, and is" if len(plan.loaded) == 1 else "are on demand, and are"
    return f" {', '.join(plan.loaded)} {are} unloaded: the next request starts a new engine."


def _document(done: Upgraded) -> dict[str, object]:
    return {
        "changed": done.changed,
        "from": done.former,
        "to": done.version,
        "seconds": round(done.seconds, 1),
        "kept": list(done.kept),
        "not_kept": list(done.others),
    }


def _lines(done: Upgraded, nodes: int, environment: str | None) -> list[str]:
    if not done.changed:
        lines = [f"Every node runs sparkfleet {done.version} already. `--force` starts them again."]
        if environment is not None:
            lines.append(
                f"They run from {environment}, the `environment:` of the inventory. If another build is in it than this"
                " command, install this one there, then `sparkfleet upgrade --force`; or leave `environment:` out."
            )
        return lines
    count = f"{nodes} node{'s' if nodes != 1 else ''}"
    lines = [
        f"{count} changed from sparkfleet {done.former or '?'} to {done.version} in {done.seconds:.0f} s."
    ]
    if done.kept:
        lines.append(f"Engines that went on: {', '.join(done.kept)}.")
    if done.others:
        lines.append(f"Not ready yet: {', '.join(done.others)}. `sparkfleet status --watch` follows them.")
    return lines
