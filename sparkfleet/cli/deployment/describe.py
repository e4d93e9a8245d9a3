"""`sparkfleet describe`: shows everything about one deployment."""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import (
    DEFAULT_INVENTORY,
    InventoryOption,
    JsonOption,
    NameArgument,
    open_session,
    run,
)
from sparkfleet.cli.output import OUTPUT_VERSION, console, event_line, print_json, print_lines
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.controlplane.state.tables.bench_table import BenchResult
from sparkfleet.controlplane.views.bench_words import bench_lines
from sparkfleet.controlplane.views.ready_words import chat_words, start_words
from sparkfleet.controlplane.views.speculation_advice import advice_for, advice_lines
from sparkfleet.fleet.deployments.status import DescribedDeployment, describe_deployment
from sparkfleet.fleet.planning.group_measurements import canary_words, measured_words
from sparkfleet.fleet.report.on_demand_words import on_demand_words, use_words
from sparkfleet.fleet.report.outcome import RETRY, failed_lines, rung_lines
from sparkfleet.fleet.report.status_lines import indented, load_words
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupReport
from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.report.explain.plan import explain_plan
from sparkfleet.units import duration_words, moment_words

EVENTS_SHOWN = 20


def describe(
    name: NameArgument, inventory: InventoryOption = DEFAULT_INVENTORY, json: JsonOption = False
) -> int:
    """Show one deployment: its plan with reasons, its groups, and its last events."""
    return run(_describe(name, open_session(inventory), json))


async def _describe(name: str, session: Session, json: bool) -> int:
    described = await describe_deployment(session, name)
    if json:
        print_json(
            {
                "version": OUTPUT_VERSION,
                "deployment": described.status.model_dump(mode="json"),
                "bench": [one.model_dump(mode="json") for one in described.bench],
                "events": [event.model_dump(mode="json") for event in described.events],
            }
        )
    else:
        _show(described, session.inventory.head)
    return Exit.DONE


def _show(described: DescribedDeployment, head: str = "") -> None:
    """Prints all that is known of a deployment. `head`: the fleet's head node."""
    deployment = described.status
    since = moment_words(deployment.since)
    for line in indented(f"{deployment.name}   {deployment.state}   {deployment.detail}", "", "    "):
        console.print(line, markup=False)
    console.print(f"  generation {deployment.generation}, applied by {deployment.who} at {since}")
    did_not_start = deployment.state == "failed" or deployment.instead is not None
    for line in (*failed_lines(deployment), RETRY) if did_not_start else ():
        for each in indented(line, "  ", "    "):
            console.print(each, markup=False)
    if deployment.plan is not None:
        print_lines(explain_plan(deployment.plan, head=head))
    print_lines(advice_lines(advice_for(deployment)))
    if deployment.on_demand:
        use = use_words(deployment)
        # One that failed is started by nothing but a retry.
        rule = "" if use and deployment.state == "failed" else on_demand_words(deployment)
        print_lines(lines_of("on demand", *filter(None, (use, rule))))
    for group in deployment.groups:
        _show_group(deployment, group, described.bench)
    console.print("\nevents")
    for event in described.events[-EVENTS_SHOWN:]:
        console.print(event_line(event))


def _show_group(deployment: DeploymentStatus, group: GroupReport, bench: Sequence[BenchResult]) -> None:
    console.print(f"\n  group {group.name}   {_phase(group)}   on {group.node}, {group.url}")
    console.print(f"    measured: {measured_words(deployment, group)}")
    rung = deployment.rung_of(group)
    for line in bench_lines([rung] if rung else [], bench):
        for each in indented(f"bench {line}", "    "):
            console.print(each, markup=False)
    if canary := canary_words(group):
        console.print(f"    canary: {canary}", markup=False)
    if group.chat_refusal:
        for each in indented(chat_words(group), "    "):
            console.print(each, markup=False)
    for line in rung_lines(deployment, group):
        for each in indented(line, "    "):
            console.print(each, markup=False)
    if group.started_s and (parts := start_words(group, rung)):
        console.print(f"    started in {duration_words(group.started_s)}: {parts}", markup=False)
    console.print(f"    {load_words(group, rung.candidate if rung else None)}")
    for rank in group.ranks:
        console.print(f"    rank {rank.rank} on {rank.node}, pid {rank.pid}; log {rank.log_path}")
    for line in indented(group.detail, "    "):
        console.print(line, markup=False)


def _phase(group: GroupReport) -> str:
    """The phase of a group, or its last known one if the group has stopped reporting."""
    if not group.silent_s:
        return group.phase.value
    return f"was {group.phase.value}; no report for {group.silent_s:.0f} s"
