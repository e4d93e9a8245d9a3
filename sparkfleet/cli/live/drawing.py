"""Draws the live view's parts as text for a width. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from sparkfleet.cli.escapes import visible
from sparkfleet.cli.live.memory import LastValues, ViewItem, ViewMemory
from sparkfleet.cli.output import STATE_STYLE
from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.fleet.report.speeds import sparkline
from sparkfleet.fleet.report.status_lines import (
    LastStart,
    candidate_of,
    duration_words,
    group_lines,
    state_words,
)
from sparkfleet.units import GIB

OLD_S = 5.0
"""Age from which values are shown with their age: a reading takes a second, over SSH two."""
SCARCE, TIGHT = 0.08, 0.15
"""Shares of available memory from which a bar is red or yellow. Below them a Spark begins to swap and to stall."""
NARROW = 60
"""Columns below which bars and sparklines are short."""


def header(memory: ViewMemory, now: float, width: int) -> Text:
    """One line about the whole fleet: nodes, deployments, streams, speed."""
    if memory.status is None:
        return Text(f"fleet {memory.fleet}: waiting for its controller …")
    nodes, deployments = memory.status.nodes, memory.status.deployments
    groups = [item.group for item in memory.items() if item.group]
    away = sum(not node.joined for node in nodes)
    text = Text(f"fleet {memory.status.fleet}", style="bold")
    parts = (
        f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}" + (f", {away} gone" if away else ""),
        f"{sum(one.state == 'ready' for one in deployments)} of {len(deployments)} ready",
        f"{sum(one.running for one in groups)} streams, {sum(one.waiting for one in groups)} wait",
        f"{memory.speeds.total():.1f} tok/s",
    )
    text.append("".join(f" · {part}" for part in parts), style="not bold")
    if age := age_words(memory.answered_at, now):
        text.append(f" · {age}", style="yellow")
    return text


def age_words(at: float | None, now: float) -> str:
    """`values of 12 s ago`; "" for fresh ones."""
    return f"values of {duration_words(now - at)} ago" if at is not None and now - at > OLD_S else ""


def nodes(memory: ViewMemory, now: float, width: int) -> Text:
    """A line per node with its memory, power and temperature; a long one goes on below."""
    found = memory.status.nodes if memory.status else ()
    drained = {one.node for one in memory.status.drained} if memory.status else set()
    name_width = min(max((len(node.name) for node in found), default=0), 20)
    lines = [
        _node(node, memory.nodes.get(node.name), now, (name_width, width), node.name in drained)
        for node in found
    ]
    return Text("\n").join(lines)


def _node(
    node: NodeReport, last: LastValues | None, now: float, widths: tuple[int, int], drained: bool
) -> Text:
    name_width, width = widths
    text = Text(f"{visible(node.name):<{name_width}} ")
    if last is not None:
        text.append_text(_memory_bar(last.report, 10 if width < NARROW else 24))
    if not node.joined:
        text.append(" gone: Ray on it does not answer", style="bold red")
    if last is None:
        text.append("" if not node.joined else " memory not read")
        return text
    text.append("".join(f" · {part}" for part in _node_parts(last.report, drained)))
    if age := age_words(last.at, now):
        text.append(f" · {age}", style="yellow")
    return text


def _memory_bar(node: NodeReport, width: int) -> Text:
    total, available = node.memory_total or 1, node.memory_available or 0
    share = available / total
    filled = round((1 - share) * width)
    style = "red" if share < SCARCE else "yellow" if share < TIGHT else "green"
    bar = Text("█" * filled, style=style) + Text("░" * (width - filled), style="dim")
    return bar + Text(f" {(total - available) / GIB:.1f} of {total / GIB:.1f} GiB used")


def _node_parts(node: NodeReport, drained: bool) -> Iterator[str]:
    for gpu in (node.readings.slow.gpus or ()) if node.readings else ():
        if gpu.power_w is not None:
            yield f"{gpu.power_w:.0f} W"
        if gpu.temperature_c is not None:
            yield f"{gpu.temperature_c:.0f} °C"
    rails = node.readings.rails if node.readings else ()
    if rails and (down := [rail.netdev for rail in rails if not rail.up]):
        yield f"rail {', '.join(down)} down"
    if drained:
        yield "drained"


def item(one: ViewItem, memory: ViewMemory, now: float, width: int, last_start: LastStart) -> Text:
    """The lines of a group, or of a deployment without one."""
    if one.group is None:
        state = state_words(one.deployment)
        text = _headline(one.deployment.name, state)
        return text.append(f" · {visible(one.deployment.detail)}") if one.deployment.detail else text
    group, candidate = one.group, candidate_of(one.deployment, one.group)
    index = one.deployment.index_of(group.group)
    plan = one.deployment.plan
    rungs = len(plan.groups[index].ladder) if plan and index is not None and index < len(plan.groups) else 0
    text = _headline(group.name, group.phase.value)
    if rungs:
        text.append(f" · rung {group.rung + 1} of {rungs}")
    text.append(
        f" · {candidate.shape} · {candidate.how}" if candidate else f" · {group.node} · {group.engine}"
    )
    speed = memory.speeds.now(group.name)
    if speed is not None:
        text.append(f"\n  {speed:.1f} tok/s ")
        text.append(sparkline(memory.speeds.of(group.name), 12 if width < NARROW else 40), style="cyan")
    for line in group_lines(one.deployment, group, memory.recent, now, last_start):
        text.append(f"\n  {visible(line)}")
    return text


def _headline(name: str, state: str) -> Text:
    return Text(visible(name), style="bold") + Text(
        f" {state}", style=f"not bold {STATE_STYLE.get(state.partition(' ')[0], '')}"
    )
