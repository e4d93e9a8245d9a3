"""One command of a shell script, with what is known of its variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN = "\ufffc"
"""Stands around the name of a variable whose value is not known, and around $(…)."""
_ONE_UNKNOWN = re.compile(rf"{UNKNOWN}[A-Za-z0-9_]+{UNKNOWN}", re.ASCII)


class ShellCommand(NamedTuple):
    """One simple command."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    """Its environment: what the script has exported, and what is set in front of it."""
    variables: Mapping[str, str]
    """Those that the script has set before it."""


class Assumptions(NamedTuple):
    """Values and conditions that a script does not settle itself."""

    given: Mapping[str, str] = {}
    """Values of variables and of positional parameters ("1"), which the script's own assignments do not replace."""
    undecided: bool | None = None
    """Result of a test whose values are not known; None: both branches are read."""


NOTHING_ASSUMED = Assumptions()


def unknown_names(word: str) -> tuple[str, ...]:
    """Variables in a word whose values are not known; `$(…)` for the output of a command."""
    return tuple(dict.fromkeys(re.findall(f"{UNKNOWN}(.*?){UNKNOWN}", word, re.DOTALL)))


def is_unset(word: str) -> bool:
    """True for the value of a variable that nothing sets: in a shell it is empty."""
    return _ONE_UNKNOWN.fullmatch(word) is not None


def shown(word: str) -> str:
    """A word as in the script: `$NAME` for a variable without a value, `$1` for a positional parameter."""
    return re.sub(f"{UNKNOWN}(.*?){UNKNOWN}", lambda one: one[1] if one[1][:1] == "$" else f"${one[1]}", word)
