"""A page of the live view that shows lines as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from sparkfleet.cli.escapes import visible
from sparkfleet.errors import SparkfleetError


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
