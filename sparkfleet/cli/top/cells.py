"""Texts of the live view: its headline, its notes, and the cells of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from sparkfleet.cli.escapes import visible
from sparkfleet.cli.output import STATE_STYLE
from sparkfleet.fleet.report.live_view import GroupRow, LiveView, NodeRow, bar, sparkline
from sparkfleet.fleet.report.status_lines import NOTHING_DEPLOYED, TAKEN_DOWN
from sparkfleet.units import gib, gib_of

WIDE_BAR, NARROW_BAR = 16, 8
WIDE_NAME, NARROW_NAME = 40, 20
WIDE_DETAIL, NARROW_DETAIL = 40, 10
"""Characters of names and of a state's detail: what is longer would push the figures out of sight."""
HIGH, FULL = 0.85, 0.95
"""Shares of a node's memory from which its bar is yellow and red: a Spark that runs out of unified memory hangs."""
STYLES = {**STATE_STYLE, "gone": "red", "silent": "red", "drained": "yellow", "joined": "green"}


def head(view: LiveView) -> Text:
    """The headline: the rate and the requests of the fleet, and its condition if that is not "up"."""
    rate = "–" if view.tps is None else f"{view.tps:.0f}"
    figures = (f"{rate} tok/s", f"{view.running} requests running, {view.waiting} waiting", view.endpoint)
    words = (f"fleet {view.fleet}".rstrip(), *(figures if view.endpoint else ()))
    text = Text(visible(" · ".join(words)), style="bold")
    if view.condition != "up":
        text.append(f" · {view.condition}", style="bold red")
    if view.age_s:
        text.append(f" · figures are {view.age_s:.0f} s old", style="bold red")
    return text


def notes(view: LiveView, selected: GroupRow | None, *, narrow: bool) -> Iterator[str]:
    """Facts that no row has room for."""
    entries = [row for row in view.nodes if row.entry]
    if narrow and entries:
        lost = ", ".join(row.name for row in entries if not row.reached)
        words = f"not reached: {lost}" if lost else "all reached"
        yield f"further addresses of the endpoint: {len(entries)}, {words} · `sparkfleet status` lists them"
    if view.paused:
        yield " ".join(TAKEN_DOWN.splitlines())
    elif view.endpoint and not view.groups:
        yield NOTHING_DEPLOYED
    if selected is not None and len(selected.detail) > _detail_room(narrow=narrow):
        yield f"{selected.name}: {selected.detail}"
    if selected is not None and selected.on_demand:
        yield f"{selected.deployment} is on demand: {selected.on_demand}"
    if selected is not None:
        yield from (f"{selected.deployment} speculation: {words}" for words in selected.speculation)


def _detail_room(*, narrow: bool) -> int:
    return NARROW_DETAIL if narrow else WIDE_DETAIL


def _short(words: str, room: int) -> str:
    return words if len(words) <= room else f"{words[: room - 1]}…"


def _name(name: str, *, narrow: bool) -> Text:
    """A name with its end, which distinguishes groups."""
    words, room = visible(name), NARROW_NAME if narrow else WIDE_NAME
    return Text(words if len(words) <= room else f"{words[: room - 9]}…{words[-8:]}")


def node_cells(row: NodeRow, *, narrow: bool, entry: bool) -> Sequence[Text]:
    """The cells of a node. `entry`: any node has a further address of the endpoint."""
    cells = (
        _name(row.name, narrow=narrow or entry),
        Text(row.state, style=STYLES.get(row.state, "")),
        _memory(row, NARROW_BAR if narrow else WIDE_BAR),
        Text(_gpu(row)),
        Text(f"{row.rails_up} of {row.rails}", style="red" if row.rails_up < row.rails else "")
        if row.rails
        else Text("–"),
    )
    if narrow or not entry:
        return cells
    return (*cells, Text(visible(row.entry) or "–", style="" if row.reached else "red"))


def _memory(row: NodeRow, width: int) -> Text:
    if row.memory_used is None or row.memory_total is None or row.memory_available is None:
        return Text("not read")
    style = "red" if row.memory_used >= FULL else "yellow" if row.memory_used >= HIGH else "green"
    used = row.memory_total - row.memory_available
    return Text.assemble((bar(row.memory_used, width), style), f" {gib_of(used, row.memory_total)}")


def _gpu(row: NodeRow) -> str:
    parts = (
        None if row.busy is None else f"{row.busy:.0%}",
        None if row.power_w is None else f"{row.power_w:.0f} W",
        None if row.temperature_c is None else f"{row.temperature_c:.0f} °C",
    )
    return " ".join(filter(None, parts)) or "–"


def group_cells(row: GroupRow, *, narrow: bool) -> Sequence[Text]:
    """The cells of a group; a narrow terminal has no room for its nodes, memory and acceptance."""
    state = Text(row.state, style=STYLES.get(row.state.partition(" ")[0], ""))
    if row.rung > 1:
        state.append(f" rung {row.rung}", style="yellow")
    if row.detail:
        state.append(f" {_short(visible(row.detail), _detail_room(narrow=narrow))}", style="default")
    rate = Text("–" if row.tps is None else f"{row.tps:.1f}", justify="right")
    running = Text(_running(row), justify="right")
    line = Text(sparkline(row.history, 12 if narrow else 24), style="cyan")
    first, rest = (
        (_name(row.name, narrow=narrow), state),
        (rate, line, running, Text(f"{row.waiting}", justify="right")),
    )
    if narrow:
        return (*first, *rest)
    accepted = Text("–" if row.acceptance is None else f"{row.acceptance:.0%}", justify="right")
    memory = Text("–" if row.memory is None else gib(row.memory), justify="right")
    return (*first, Text(visible(row.where)), *rest, memory, accepted, Text(_one_user(row)))


def _running(row: GroupRow) -> str:
    """`3 of 16`, or `3 conn.` if open connections are all that is known."""
    if row.counts_connections:
        return f"{row.running} conn."
    return f"{row.running} of {row.slots}" if row.slots else f"{row.running}"


def _one_user(row: GroupRow) -> str:
    """`24.7 tok/s (predicted 21–28)`."""
    measured = "" if row.measured_tps is None else f"{row.measured_tps:.1f} tok/s"
    return f"{measured} (predicted {row.predicted})".strip() if row.predicted else measured or "–"
