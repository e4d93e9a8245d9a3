"""Lines behind labels, wrapped, and numbers as they are shown."""

from __future__ import annotations

import re
import textwrap

from sparkfleet.perf.prediction import Band
from sparkfleet.units import short_number

INDENT = "  "
LABEL = 12
COLUMNS = 99
"""Length of the longest line; only a word that is longer by itself exceeds it."""
WIDTH = COLUMNS - len(INDENT) - LABEL
"""Length of a text beside its label."""
_CODE = re.compile(r"`[^`]*`")
_GLUE = "\x00"
"""In place of a space at which a line must not end: what a user types stays in one line."""


def band_ends(band: Band) -> str:
    """The low and the high end of a band, two digits each: `11–26`."""
    return f"{short_number(band.low)}–{short_number(band.high)}"


def labelled(label: str, text: str) -> str:
    """A text beside its label."""
    return f"{INDENT}{label:<{LABEL}}{text}"


def lines_of(label: str, *texts: str) -> list[str]:
    """The texts below each other behind one label, each wrapped."""
    wrapped = [line for text in texts for line in wrap(text)]
    return [labelled(label if number == 0 else "", line) for number, line in enumerate(wrapped)]


def wrap(text: str, indent: int = 0) -> list[str]:
    """The text in lines that fit beside a label; those after the first are indented by two more columns."""
    start = indent + len(text) - len(text.lstrip())
    if indent + len(text) <= WIDTH:
        return [" " * indent + text]
    lines = textwrap.wrap(
        _CODE.sub(lambda code: code[0].replace(" ", _GLUE), text.strip()),
        WIDTH,
        initial_indent=" " * start,
        subsequent_indent=" " * (start + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]
