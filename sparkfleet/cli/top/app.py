"""Terminal application of `sparkfleet top`: nodes, groups, and the logs, events and reasons of the selected one.

It draws what `LiveReadings` makes of the fleet's status, and reads everything through `Pages`, so that tests drive it
without a fleet. Texts of engines, models and nodes are shown as they are: no markup, no control characters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import DataTable, Footer, RichLog, Static
from textual.widgets.data_table import RowDoesNotExist

from sparkfleet.cli.escapes import visible
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.output import STATE_STYLE
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.deployments.status import FleetOverview
from sparkfleet.fleet.report.live_view import GroupRow, LiveReadings, LiveView, NodeRow, bar, sparkline
from sparkfleet.fleet.report.status_lines import NOTHING_DEPLOYED, TAKEN_DOWN
from sparkfleet.units import gib, gib_of

EVERY_S = 1.0
"""Seconds between two readings."""
PAGES = ("log", "events", "reasons")
"""Actions that open a page."""
OLD_S = 4.0
"""Age from which figures are named old. A reading over SSH takes a second."""
NARROW = 135
"""Columns below which less important ones are left out."""
WIDE_BAR, NARROW_BAR = 16, 8
WIDE_NAME, NARROW_NAME = 40, 20
WIDE_DETAIL, NARROW_DETAIL = 40, 10
"""Characters of names and of a state's detail: what is longer would push the figures out of sight."""
HIGH, FULL = 0.85, 0.95
"""Shares of a node's memory from which its bar is yellow and red: a Spark that runs out of unified memory hangs."""
STYLES = {**STATE_STYLE, "gone": "red", "silent": "red", "drained": "yellow", "joined": "green"}


class Pages(Protocol):
    """Texts of one deployment, read when its page is opened."""

    def log(self, deployment: str, replica: int, generation: int | None) -> AsyncIterator[str]:
        """Lines of the log of rank 0, and new ones as it grows. `generation`: None: the newest one's."""
        ...

    async def events(self, deployment: str) -> Sequence[str]:
        """Its last events, oldest first."""
        ...

    async def reasons(self, deployment: str) -> Sequence[str]:
        """Lines of its plan with the reasons."""
        ...


class TextPage(Screen[None]):
    """Lines of text that grow, with a title; `escape` goes back. `lines`: the lines, until they end or the page is left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left", "app.pop_screen", "Back"),
        Binding("end", "to_end", "End", show=False),
    ]
    CSS = "TextPage Static { text-style: bold; height: 1; } TextPage RichLog { height: 1fr; }"

    def __init__(self, title: str, lines: AsyncIterator[str]) -> None:
        super().__init__()
        self._heading = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Static(self._heading, markup=False)
        yield RichLog(wrap=True, markup=False, max_lines=5000)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(RichLog).focus()
        self._read()

    def action_to_end(self) -> None:
        """Scroll to the last line."""
        self.query_one(RichLog).scroll_end(animate=False)

    @work(exclusive=True)
    async def _read(self) -> None:
        log = self.query_one(RichLog)
        any_line = False
        try:
            async for line in self._lines:
                any_line = True
                log.write(Text(visible(line)), expand=True)
        except SparkfleetError as error:
            any_line = True
            for line in filter(None, (error.what, error.means, error.do)):
                log.write(Text(visible(line), style="red"), expand=True)
        if not any_line:
            log.write(Text("There are no lines."))


class TopApp(App[None]):
    """The live view.

    Args:
        read: reads the fleet once. Its errors are shown, and the next reading is tried.
        pages: texts of a deployment.
        every_s: seconds between two readings.
    """

    TITLE = "sparkfleet top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #trouble { height: auto; max-height: 8; padding: 0 1; color: $text-error; display: none; }
    #note { height: auto; padding: 0 1; display: none; }
    #nodes { height: auto; max-height: 40%; }
    #groups { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "Log"),
        Binding("e", "events", "Events"),
        Binding("r,enter", "reasons", "Reasons"),
        Binding("q", "quit", "Quit"),
        # Textual's own ctrl+c copies a selection, or shows a hint for ctrl+q.
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(
        self, read: Callable[[], Awaitable[FleetOverview]], pages: Pages, every_s: float = EVERY_S
    ) -> None:
        super().__init__()
        self._read_fleet = read
        self._pages = pages
        self._every_s = every_s
        self._readings = LiveReadings()
        self._view: LiveView | None = None
        self._good_at = time.monotonic()
        self._narrow = False
        self._has_entries = False

    def action_interrupt(self) -> None:
        """End the view as Ctrl-C ends any verb."""
        self.exit(return_code=Exit.INTERRUPTED)

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Static("reading the fleet …", id="head", markup=False)
        yield Static("", id="trouble", markup=False)
        yield DataTable(id="nodes", cursor_type="none")
        yield DataTable(id="groups", cursor_type="row")
        yield Static("", id="note", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self._columns()
        self.query_one("#groups", DataTable).focus()
        self._read()
        self.set_interval(self._every_s, self._age)

    def on_resize(self, event: Resize) -> None:
        """Other columns, if the width has changed enough."""
        if (event.size.width < NARROW) != self._narrow:
            self._narrow = not self._narrow
            selected = self._selected()
            self._columns()
            if self._view is not None:
                self._draw(self._view)
            if selected is not None:
                _select(self.screen_stack[0].query_one("#groups", DataTable), selected.name)

    def _columns(self) -> None:
        self._node_columns()
        groups = self.screen_stack[0].query_one("#groups", DataTable)
        groups.clear(columns=True)
        on, more = ((), ()) if self._narrow else (("on",), ("memory", "acceptance", "one user"))
        groups.add_columns("group", "state", *on, "tok/s", "trend", "running", "waiting", *more)

    def _node_columns(self) -> None:
        nodes = self.screen_stack[0].query_one("#nodes", DataTable)
        nodes.clear(columns=True)
        shown = ("endpoint",) if self._has_entries and not self._narrow else ()
        nodes.add_columns("node", "state", "memory", "GPU", "rails", *shown)

    @work
    async def _read(self) -> None:
        """Reads until the end: a reading that takes longer than the others delays only the next one."""
        while True:
            try:
                view = self._readings.add(await self._read_fleet(), time.monotonic())
                self._good_at = time.monotonic() - view.age_s
            except SparkfleetError as error:
                lines = tuple(filter(None, (error.what, error.means, error.do)))
                view = (self._view or LiveView("", condition="unreadable"))._replace(trouble=lines)
            self._draw(view)
            await asyncio.sleep(self._every_s)

    def _age(self) -> None:
        """Shows how old the figures are while a reading does not come back."""
        age = time.monotonic() - self._good_at
        if self._view is not None and age > OLD_S:
            self._draw(self._view._replace(age_s=age))

    def _draw(self, view: LiveView) -> None:
        self._view = view
        main = self.screen_stack[0] if self.screen_stack else None  # below a page that is open
        if main is None or not main.query("#head"):
            return  # it ends
        main.query_one("#head", Static).update(_head(view))
        trouble = main.query_one("#trouble", Static)
        trouble.display = bool(view.trouble)
        trouble.update(Text("\n".join(map(visible, view.trouble))))
        if any(row.entry for row in view.nodes) != self._has_entries:
            self._has_entries = not self._has_entries
            self._node_columns()
        _fill(
            main.query_one("#nodes", DataTable),
            (
                (row.name, _node_cells(row, narrow=self._narrow, entry=self._has_entries))
                for row in view.nodes
            ),
        )
        _fill(
            main.query_one("#groups", DataTable),
            ((row.name, _group_cells(row, self._narrow)) for row in view.groups),
        )
        self._draw_note()

    def _draw_note(self) -> None:
        note = self.screen_stack[0].query_one("#note", Static)
        words = [*_notes(self._view, self._selected(), narrow=self._narrow)] if self._view else []
        note.display = bool(words)
        note.update(Text("\n".join(map(visible, words))))

    def _selected(self) -> GroupRow | None:
        table = self.screen_stack[0].query_one("#groups", DataTable)
        rows = self._view.groups if self._view else ()
        return rows[table.cursor_row] if 0 <= table.cursor_row < len(rows) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Pages open from the view, not from each other; the footer shows the keys that work."""
        return not (action in PAGES and isinstance(self.screen, TextPage))

    def action_log(self) -> None:
        """The engine's log of the selected group."""
        if row := self._selected():
            lines = self._pages.log(row.deployment, row.replica, row.generation)
            self.push_screen(TextPage(f"log of {row.name}, rank 0", lines))

    def action_events(self) -> None:
        """Events of the selected deployment."""
        if row := self._selected():
            self.push_screen(
                TextPage(f"events of {row.deployment}", _lines(self._pages.events(row.deployment)))
            )

    def action_reasons(self) -> None:
        """Reasons of the selected deployment's plan."""
        if row := self._selected():
            self.push_screen(
                TextPage(f"plan of {row.deployment}", _lines(self._pages.reasons(row.deployment)))
            )

    def on_data_table_row_highlighted(self) -> None:
        """The note is of the selected group."""
        if self.screen_stack and self.screen_stack[0].query("#note"):
            self._draw_note()

    def on_data_table_row_selected(self) -> None:
        """`enter` on a group."""
        self.action_reasons()


async def _lines(reading: Awaitable[Sequence[str]]) -> AsyncIterator[str]:
    for line in await reading:
        yield line


def _fill(table: DataTable[Text], rows: Iterable[tuple[str, Sequence[Text]]]) -> None:
    """Rows in place of the present ones. The selected one stays selected by its name."""
    selected = ""
    if table.row_count and 0 <= table.cursor_row < table.row_count:
        selected = str(table.coordinate_to_cell_key((table.cursor_row, 0)).row_key.value)  # type: ignore[arg-type]
    table.clear()
    for name, cells in rows:
        table.add_row(*cells, key=name)
    _select(table, selected)


def _select(table: DataTable[Text], name: str) -> None:
    with suppress(RowDoesNotExist):  # it has ended: the first one is selected
        table.move_cursor(row=table.get_row_index(name), animate=False)


def _head(view: LiveView) -> Text:
    rate = "–" if view.tps is None else f"{view.tps:.0f}"
    figures = (f"{rate} tok/s", f"{view.running} requests running, {view.waiting} waiting", view.endpoint)
    words = (f"fleet {view.fleet}".rstrip(), *(figures if view.endpoint else ()))
    text = Text(visible(" · ".join(words)), style="bold")
    if view.condition != "up":
        text.append(f" · {view.condition}", style="bold red")
    if view.age_s:
        text.append(f" · figures are {view.age_s:.0f} s old", style="bold red")
    return text


def _notes(view: LiveView, selected: GroupRow | None, *, narrow: bool) -> Iterator[str]:
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


def _detail_room(*, narrow: bool) -> int:
    return NARROW_DETAIL if narrow else WIDE_DETAIL


def _short(words: str, room: int) -> str:
    return words if len(words) <= room else f"{words[: room - 1]}…"


def _name(name: str, *, narrow: bool) -> Text:
    """A name with its end, which distinguishes groups."""
    words, room = visible(name), NARROW_NAME if narrow else WIDE_NAME
    return Text(words if len(words) <= room else f"{words[: room - 9]}…{words[-8:]}")


def _node_cells(row: NodeRow, *, narrow: bool, entry: bool) -> Sequence[Text]:
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


def _group_cells(row: GroupRow, narrow: bool) -> Sequence[Text]:
    state = Text(row.state, style=STYLES.get(row.state.partition(" ")[0], ""))
    if row.rung > 1:
        state.append(f" rung {row.rung}", style="yellow")
    if row.detail:
        state.append(f" {_short(visible(row.detail), _detail_room(narrow=narrow))}", style="default")
    rate = Text("–" if row.tps is None else f"{row.tps:.1f}", justify="right")
    running = Text(f"{row.running} of {row.slots}" if row.slots else f"{row.running}", justify="right")
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


def _one_user(row: GroupRow) -> str:
    """`24.7 tok/s (predicted 21–28)`."""
    measured = "" if row.measured_tps is None else f"{row.measured_tps:.1f} tok/s"
    return f"{measured} (predicted {row.predicted})".strip() if row.predicted else measured or "–"
