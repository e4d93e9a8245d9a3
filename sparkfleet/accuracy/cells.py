"""Cells of a row of measurements: numbers, or the reason why a cell cannot be read. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.accuracy.aliases import BLANK, TOKENS, lowered, number
from sparkfleet.accuracy.models import Declined

CsvRow = Mapping[str, str]

_MACHINES = dict.fromkeys(("x", "node", "nodes", "spark", "sparks", "dgx", "box", "boxes"), 1.0)
_REQUESTS = dict.fromkeys(
    ("x", "user", "users", "request", "requests", "reqs", "streams", "clients", "concurrent"), 1.0
)
_PARALLEL = dict.fromkeys(("x", "way"), 1.0)
_PARAMS = {"b": 1.0, "m": 1e-3, "t": 1e3, "params": 1.0, "parameters": 1.0}
_SHARE = "(?:--)?gpu[-_]memory[-_]utilization|util"
_RATE = {"k": 1000.0} | dict.fromkeys(("tok/s", "t/s", "tokens/s", "tps", "toks/s"), 1.0)

_COLUMNS: dict[str, tuple[Mapping[str, float], str, float]] = {
    "nodes": (_MACHINES, "nodes", 4096),
    "tp": (_PARALLEL, "tp", 4096),
    "pp": (_PARALLEL, "pp", 4096),
    "ep": (_PARALLEL, "ep", 4096),
    "spec_tokens": (TOKENS, "k|n|b", 512),
    "prompt_tokens": (TOKENS, "prompt|pp", 1e8),
    "depth": (TOKENS, "depth|d", 1e8),
    "gen_tokens": (TOKENS, "gen|tg", 1e8),
    "concurrency": (_REQUESTS, "concurrency|concurrent|c|x|bs|batch|users", 1e5),
    "params_total_b": (_PARAMS, "", 1e5),
    "params_active_b": (_PARAMS, "a", 1e5),
    "weights_gb": ({"gb": 1.0, "g": 1.0, "gib": 1.074, "tb": 1000.0}, "", 1e5),
    "mem_util_flag": ({"%": 0.01}, _SHARE, 1.0),
}
"""Column → units that may follow, names that may precede, the largest plausible value."""
_MEASURED = {"ttft_ms": {"ms": 1.0, "s": 1000.0, "sec": 1000.0}}
"""Measured column → units that may follow; the others are rates. Other units are converted before a source is added."""


def amount(row: CsvRow, column: str) -> float | None:
    """The number in a cell about the configuration; None if the cell is empty.

    Raises:
        Declined: the cell contains something else: a negative number, a range, words.
    """
    text = row.get(column, "")
    if lowered(text) in BLANK | {"auto", "default"}:
        return None
    units, names, largest = _COLUMNS[column]
    value = number(text, units, names)
    if value is None or value > largest:
        raise Declined(f"{column} is no plausible number: {lowered(text)[:40]}")
    return value


def count(row: CsvRow, column: str, *, least: int = 0) -> int | None:
    """The whole number in a cell about the configuration; None if the cell is empty.

    Raises:
        Declined: the cell contains something else, or less than `least`.
    """
    value = amount(row, column)
    if value is not None and (value != int(value) or value < least):
        raise Declined(f"{column} is no plausible number: {lowered(row[column])[:40]}")
    return None if value is None else int(value)


def measured(row: CsvRow, metric: str) -> float | None:
    """A measured figure in the units of its column; None if it is missing or cannot be read."""
    value = number(row.get(metric, ""), _MEASURED.get(metric, _RATE))
    return value or None


def unreadable(row: CsvRow, metric: str) -> str:
    """A measured figure that would not count, with the units that it may have; "" if the cell is empty or can be read."""
    text = row.get(metric, "")
    if lowered(text) in BLANK or measured(row, metric) is not None:
        return ""
    return f"{metric} is {text}: expected a number, with no unit or {', '.join(_MEASURED.get(metric, _RATE))}"
