"""The screens behind the view: the log of a rank, events, and the reasons of a plan."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from sparkfleet.cli.escapes import visible
from sparkfleet.cli.live.memory import ViewItem, ViewMemory
from sparkfleet.cli.live.source import Source
from sparkfleet.cli.output import event_line
from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.report.outcome import failed_lines, rung_lines
from sparkfleet.planner.report.explain import explain_plan

MOST_LINES = 5000


class TextScreen(Screen[None]):
    """Lines under a title; arrows and page keys scroll, escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._heading = title

    def compose(self) -> ComposeResult:
        """The title, the lines, the keys."""
        yield Static(Text(self._heading, style="bold"), id="heading", markup=False)
        yield RichLog(
            id="lines", wrap=True, min_width=10, max_lines=MOST_LINES, highlight=False, markup=False
        )
        yield Footer(show_command_palette=False)

    @property
    def lines(self) -> RichLog:
        """The widget with the lines."""
        return self.query_one("#lines", RichLog)

    def put(self, lines: Iterable[Text | str]) -> None:
        """Adds lines."""
        for line in lines:
            self.lines.write(Text(visible(line)) if isinstance(line, str) else _safe(line))

    def head(self, title: str) -> None:
        """Changes the title."""
        self.query_one("#heading", Static).update(Text(title, style="bold"))


def _safe(text: Text) -> Text:
    text.plain = visible(text.plain)
    return text


class PlanScreen(TextScreen):
    """The plan of a deployment: choice, predictions, rungs, and the reasons for what was not taken."""

    def __init__(self, item: ViewItem) -> None:
        super().__init__(f"plan of {item.deployment.name}")
        self._item = item

    def on_mount(self) -> None:
        """Shows the reasons, from the top."""
        one = self._item.deployment
        self.lines.auto_scroll = False
        for group in one.groups:
            self.put((f"{group.name} runs at", *rung_lines(one, group), ""))
        self.put(failed_lines(one))
        self.put(explain_plan(one.plan, everything=True) if one.plan else ("Its plan is not known.",))


class EventsScreen(TextScreen):
    """The last events of the fleet, and new ones as they come."""

    def __init__(self, memory: ViewMemory) -> None:
        super().__init__(f"events of fleet {memory.fleet}")
        self._memory = memory
        self._last = 0

    def on_mount(self) -> None:
        """Shows the known events, and looks for new ones."""
        self._show()
        self.set_interval(0.5, self._show)

    def _show(self) -> None:
        new = [event for event in self._memory.recent if event.id > self._last]
        self.put(event_line(event) for event in new)
        self._last = max((event.id for event in new), default=self._last)


class LogScreen(TextScreen):
    """The log of one rank of a group as it grows."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("n", "next_rank", "next rank")]

    def __init__(self, source: Source, item: ViewItem) -> None:
        super().__init__("")
        self._source = source
        self._deployment = item.deployment.name
        self._replica = item.group.replica if item.group else 0
        self._rank_numbers = tuple(rank.rank for rank in item.group.ranks) if item.group else ()
        self._homes = {rank.rank: rank.node for rank in item.group.ranks} if item.group else {}
        self._rank = 0

    def on_mount(self) -> None:
        """Follows rank 0."""
        self._follow()

    def action_next_rank(self) -> None:
        """Follows the next rank's log."""
        self._rank = (self._rank + 1) % max(1, len(self._rank_numbers))
        self._follow()

    def _follow(self) -> None:
        rank = self._rank_numbers[self._rank] if self._rank_numbers else 0
        node = f" on {self._homes[rank]}" if rank in self._homes else ""
        of = f" of {len(self._rank_numbers)}" if self._rank_numbers else ""
        self.head(f"log of {self._deployment}, replica {self._replica}, rank {rank}{of}{node}")
        self.lines.clear()
        self.run_worker(self._read(rank), exclusive=True)

    async def _read(self, rank: int) -> None:
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        try:
            async for piece in self._source.log(self._deployment, self._replica, rank):
                *whole, rest = (rest + decoder.decode(piece)).replace("\r\n", "\n").split("\n")
                self.put(whole)
        except SparkfleetError as error:
            self.put(part for part in (error.what, error.means, error.do) if part)
