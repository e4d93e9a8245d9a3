"""Terminal application of `sparkfleet top`: nodes, groups, and the logs, events and reasons of the selected one.

It draws what `LiveReadings` makes of the fleet's status, and reads everything through `Pages`, so that tests drive it
without a fleet. Texts of engines, models and nodes are shown as they are: no markup, no control characters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import DataTable, Footer, Static
from textual.widgets.data_table import RowDoesNotExist

from sparkfleet.cli.escapes import visible
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.top.cells import group_cells, head, node_cells, notes
from sparkfleet.cli.top.text_page import TextPage
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.deployments.status import FleetOverview
from sparkfleet.fleet.report.live_view import GroupRow, LiveReadings, LiveView

EVERY_S = 1.0
"""Seconds between two readings."""
PAGES = ("log", "events", "reasons")
"""Actions that open a page."""
OLD_S = 4.0
"""Age from which figures are named old. A reading over SSH takes a second."""
NARROW = 135
"""Columns below which less important ones are left out."""


class Pages(Protocol):
    """Texts of one deployment, read when its page is opened."""

    def log(self, deployment: str, replica: int, generation: int | None) -> AsyncIterator[str]:
        """Lines of the log of rank 0, and new ones as it grows. `generation`: None: the newest one's."""
        ...

    async def events(self, deployment: str) -> Sequence[str]:
        """The last events, oldest first."""
        ...

    async def reasons(self, deployment: str) -> Sequence[str]:
        """Lines of its plan with the reasons."""
        ...


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
        main.query_one("#head", Static).update(head(view))
        trouble = main.query_one("#trouble", Static)
        trouble.display = bool(view.trouble)
        trouble.update(Text("\n".join(map(visible, view.trouble))))
        if any(row.entry for row in view.nodes) != self._has_entries:
            self._has_entries = not self._has_entries
            self._node_columns()
        _fill(
            main.query_one("#nodes", DataTable),
            ((row.name, node_cells(row, narrow=self._narrow, entry=self._has_entries)) for row in view.nodes),
        )
        _fill(
            main.query_one("#groups", DataTable),
            ((row.name, group_cells(row, narrow=self._narrow)) for row in view.groups),
        )
        self._draw_note()

    def _draw_note(self) -> None:
        note = self.screen_stack[0].query_one("#note", Static)
        words = [*notes(self._view, self._selected(), narrow=self._narrow)] if self._view else []
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
