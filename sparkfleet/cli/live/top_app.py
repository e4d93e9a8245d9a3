"""The live view of a fleet on a terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from sparkfleet.cli.live import drawing
from sparkfleet.cli.live.memory import ViewItem, ViewMemory
from sparkfleet.cli.live.screens import EventsScreen, LogScreen, PlanScreen
from sparkfleet.cli.live.source import Source
from sparkfleet.errors import SparkfleetError

EVERY_S = 1.0
"""A group reports every two seconds; `status --watch` reads as often."""


class TopApp(App[None]):
    """Fleet, nodes and groups, drawn again each second; keys open the log, the events and the plan of what is chosen.

    Args:
        source: the fleet.
        clock: Unix seconds.
        every_s: seconds between two readings, and between two drawings.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #trouble { color: $error; text-style: bold; }
    #nodes-box { height: auto; max-height: 40%; margin-top: 1; }
    #groups { border: none; background: transparent; margin-top: 1; padding: 0; height: 1fr; }
    #lines { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "log"),
        Binding("e", "events", "events"),
        Binding("p", "plan", "plan"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(
        self, source: Source, clock: Callable[[], float] = time.time, every_s: float = EVERY_S
    ) -> None:
        super().__init__()
        self._source = source
        self._clock = clock
        self._every_s = every_s
        self.memory = ViewMemory(source.fleet)

    def compose(self) -> ComposeResult:
        """The fleet, the trouble, the nodes, the groups, the keys."""
        yield Static(id="fleet", markup=False)
        yield Static(id="trouble", markup=False)
        with VerticalScroll(id="nodes-box", can_focus=False):
            yield Static(id="nodes", markup=False)
        yield OptionList(id="groups", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to read and to draw."""
        self.query_one("#groups").focus()
        self.draw()
        self.set_interval(self._every_s, self.draw)
        self.run_worker(self._read())

    async def _read(self) -> None:
        """Reads without end. A controller that does not answer takes seconds: the drawing goes on meanwhile."""
        while True:
            try:
                found = await self._source.overview()
                self.memory.take(found, self._clock())
            except SparkfleetError as error:
                self.memory.fail(error)
            self.draw()
            await asyncio.sleep(self._every_s)

    def on_resize(self) -> None:
        """Draws for the new width."""
        self.draw()

    def draw(self) -> None:
        """Draws everything from the memory."""
        screens, now, width = self.screen_stack, self._clock(), self.size.width
        if not screens or not screens[0].query("#groups"):
            return  # it begins, or ends
        main = screens[0]
        main.query_one("#fleet", Static).update(drawing.header(self.memory, now, width))
        trouble = main.query_one("#trouble", Static)
        trouble.update(Text(self.memory.trouble))
        trouble.display = bool(self.memory.trouble)
        main.query_one("#nodes", Static).update(drawing.nodes(self.memory, now, width))
        self._draw_groups(main.query_one("#groups", OptionList), now, width)

    def _draw_groups(self, listed: OptionList, now: float, width: int) -> None:
        items = list(self.memory.items())
        texts = [drawing.item(one, self.memory, now, width, self._source.last_start) for one in items]
        if [one.name for one in items] == [option.id for option in listed.options] and items:
            for at, text in enumerate(texts):
                listed.replace_option_prompt_at_index(at, text)
            return
        chosen = self._chosen_name(listed)
        listed.clear_options()
        listed.add_options(Option(text, id=one.name) for one, text in zip(items, texts, strict=True))
        if not items and self.memory.status is not None:
            listed.add_option(
                Option("Nothing is deployed. `sparkfleet apply FILE` starts a deployment.", disabled=True)
            )
        names = [one.name for one in items]
        listed.highlighted = (names.index(chosen) if chosen in names else 0) if names else None

    def _chosen_name(self, listed: OptionList) -> str | None:
        option = listed.highlighted_option
        return option.id if option else None

    def _chosen(self) -> ViewItem | None:
        name = self._chosen_name(self.screen_stack[0].query_one("#groups", OptionList))
        found = self.memory.find(name) if name else None
        if found is None:
            self.bell()
        return found

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """True if a key works now: those that open a screen only on the first one."""
        return action not in ("log", "events", "plan") or len(self.screen_stack) == 1

    def action_log(self) -> None:
        """Opens the log of the chosen group."""
        if found := self._chosen():
            self.push_screen(LogScreen(self._source, found))

    def action_events(self) -> None:
        """Opens the events of the fleet."""
        self.push_screen(EventsScreen(self.memory))

    def action_plan(self) -> None:
        """Opens the plan of the chosen group's deployment."""
        if found := self._chosen():
            self.push_screen(PlanScreen(found))
