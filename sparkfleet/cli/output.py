"""Terminal output. Colours, boxes and redrawing only on a terminal."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sparkfleet.cli.escapes import SafeConsole
from sparkfleet.cli.loading import loading
from sparkfleet.errors import SparkfleetError
from sparkfleet.units import gb

if TYPE_CHECKING:  # slow imports, of which only the types are used
    from sparkfleet.controlplane.state.event import Event
    from sparkfleet.staging.progress import TransferProgress

OUTPUT_VERSION = 1
_TEXT_BEGINS = re.compile(r" {5,}|  if it fails |(?: {0,4}\S.{0,30}? {2,})?")
"""Matches the indentation, or a label with the spaces behind it; one label is as wide as its column, and has one space."""
_FIRST_WORD = re.compile(r" *(`[^`]*`\S*|\S+)")
_TYPED = re.compile(r"`[^`]{1,60}`")
"""A command or a field that a user types, if it is short: it stays in one line."""

# Lines wrap at the terminal's width; without a terminal they do not wrap, so that grep finds whole lines.
console = SafeConsole()
errors = SafeConsole(stderr=True)

STATE_STYLE = {
    "ready": "green",
    "degraded": "yellow",
    "starting": "yellow",
    "barred": "yellow",
    "preparing": "yellow",
    "probing": "yellow",
    "updating": "yellow",
    "draining": "yellow",
    "stopping": "yellow",
    "unloaded": "cyan",
    "failed": "red",
}


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    loading.erase()
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_line(line: str) -> None:
    """Print one line of an explanation; on a terminal it is folded to the width."""
    console.print(fold(line, console.width) if console.is_terminal else line, markup=False)


def print_lines(lines: Iterable[str]) -> None:
    """Print the lines of a plan; a terminal that is narrower than they are gets their texts folded to its width."""
    from sparkfleet.planner.report.explain.layout import COLUMNS  # a slow import, which a plan has made

    is_narrow = console.is_terminal and console.width < COLUMNS
    for line in unwrapped(lines, COLUMNS) if is_narrow else lines:
        print_line(line)


def unwrapped(lines: Iterable[str], columns: int) -> Iterator[str]:
    """Joins what was wrapped at `columns`: a line goes on in an indented one whose first word was too long for it."""
    whole: list[str] = []
    begins = 0
    for line in lines:
        word = _FIRST_WORD.match(line)
        if whole and word and word.start(1) == begins + 2 and len(whole[-1]) + 1 + len(word[1]) > columns:
            whole.append(line)
            continue
        if whole:
            yield " ".join((whole[0], *(one.strip() for one in whole[1:])))
        whole = [line]
        begins = found.end() if (found := _TEXT_BEGINS.match(line)) else 0
    if whole:
        yield " ".join((whole[0], *(one.strip() for one in whole[1:])))


def fold(line: str, width: int) -> str:
    """`line` folded at spaces to at most `width` columns, long words apart; further lines begin below its text.

    Args:
        line: `  label       text`, or text behind spaces.
        width: columns of the terminal.
    """
    begins = _TEXT_BEGINS.match(line)
    below = begins.end() if begins else 0
    return textwrap.fill(
        _TYPED.sub(lambda typed: typed[0].replace(" ", "\x00"), line),
        width,
        subsequent_indent=" " * (below + 2 if below < width // 2 else 4),
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\x00", " ")


def print_error(error: SparkfleetError) -> None:
    """Print an error on standard error: the fact, its meaning, the remedy."""
    errors.print(Text.assemble(("error: ", "bold red"), error.what))
    for part in (error.means, error.do):
        if part:
            errors.print(Text(part))


def as_parts(error: SparkfleetError) -> dict[str, str]:
    """An error in JSON: the fact, its meaning, the remedy."""
    return {"what": error.what, "means": error.means, "do": error.do}


def event_line(event: Event) -> Text:
    """`12:01:33  tiny/g1/0  ready  started in 21.3 s`; with the date if it was not today."""
    at = datetime.fromtimestamp(event.at)
    clock = at.strftime("%H:%M:%S" if at.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S")
    subject = event.subject or event.deployment
    return Text.assemble(
        (f"{clock}  ", "dim"), (f"{subject}  "), (f"{event.kind}", STATE_STYLE.get(event.kind, "bold")),
        f"  {event.message}".replace("\n", "\n" + " " * 10) if event.message else "",
    )  # fmt: skip


def progress_text(progress: TransferProgress) -> str:
    """`spark1 → spark2: 62 %, 31.2 of 50.3 GB, 1.1 GB/s, 17 s left`."""
    where = f"{progress.source} → {progress.node}" if progress.source else progress.node
    if progress.text:
        return f"{where}: {progress.text}"
    share = 100 * progress.done_bytes / progress.total_bytes if progress.total_bytes else 100.0
    parts = [f"{share:.0f} %", f"{gb(progress.done_bytes)} of {gb(progress.total_bytes)}"]
    if progress.bytes_per_s:
        parts.append(f"{gb(progress.bytes_per_s)}/s")
    if progress.eta_s:
        parts.append(f"{progress.eta_s:.0f} s left")
    doing = {"hub": "from the Hub ", "checking": "checking ", "lan": "over the LAN "}.get(progress.phase, "")
    return f"{where}: {doing}{', '.join(parts)}"
