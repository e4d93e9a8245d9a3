"""Published head-to-heads: two configurations in words, and the winner, which the predictions have to find.

Both sides are read from their words (and from the metric and the source, for what they share), never from their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sparkfleet.accuracy.aliases import lowered, number
from sparkfleet.accuracy.duel_parser import side
from sparkfleet.accuracy.files import NOTHING, read_table
from sparkfleet.accuracy.models import Configs, Declined
from sparkfleet.accuracy.rows import PublishedCase, case_of
from sparkfleet.errors import SpecError
from sparkfleet.values import Value

EXPECTED = "a CSV file of head-to-heads, with a header"
COLUMNS = "Give one with the columns metric, config_A, config_B, value_A, value_B."

CLEAR = 1.15
"""Ratios below this are noise: the same box differs by as much between two boots."""


class Duel(Value):
    """One head-to-head that can be predicted."""

    id: str
    tag: str
    metric: str
    """One of `rows.METRICS`."""
    lower_wins: bool
    first: PublishedCase
    second: PublishedCase
    first_won: bool
    assumed: tuple[str, ...] = ()
    """Assumptions about what neither side states."""


class Words(Value):
    """One head-to-head as published, and its tag."""

    tag: str
    row: Mapping[str, str]


def read_duels(path: Path) -> list[Words]:
    """Clear head-to-heads of a file with the columns of `head-to-heads.csv`.

    Raises:
        SpecError: no such file, or other columns.
    """
    rows = read_table(path, EXPECTED, COLUMNS)
    if rows and not {"metric", "config_A", "config_B", "value_A", "value_B"} <= rows[0].keys():
        raise SpecError(f"{path}: has other columns. Expected {EXPECTED}.", means=NOTHING, do=COLUMNS)
    return [Words(tag=_tag(row), row=row) for row in rows if _clear(row)]


def duel_of(words: Words, configs: Configs) -> Duel:
    """Prediction request of a head-to-head.

    Raises:
        Declined: the words are not enough; the message is the reason.
    """
    row = words.row
    metric = _metric(row["metric"])
    shared = f"{row['metric']} {row.get('source', '')}"
    assumed: list[str] = []
    first, second = _values(row)
    if first is None or second is None:
        raise Declined("a value is not a number")
    sides = []
    for x, y in ("AB", "BA"):
        own = side(row[f"config_{x}"], row[f"config_{y}"], shared, row.get("notes", ""), assumed)
        sides.append(case_of(own, configs))
        assumed += [what for what in sides[-1].assumed if not what.startswith(_ALWAYS)]
    return Duel(
        id=row.get("id", ""),
        tag=words.tag,
        metric=metric,
        lower_wins="ttft" in metric,
        first=sides[0],
        second=sides[1],
        first_won=(first < second) if _LOWER.search(lowered(row["metric"])) else (first > second),
        assumed=tuple(dict.fromkeys(assumed)),
    )


_LOWER = re.compile(r"ttft|first[- ]token|tpot|time per|\bitl\b|inter-token|\bms\b|latency")
_ALWAYS = ("answer length", "kv_dtype not given", "prompt length", "speculation not given")
"""Assumptions that are not counted: hardly any head-to-head states these, and both sides share them."""


def _values(row: Mapping[str, str]) -> tuple[float | None, float | None]:
    first, second = (number(row[f"value_{x}"], _UNITS) for x in "AB")
    return first, second


_UNITS = {"k": 1000.0} | dict.fromkeys(("tok/s", "t/s", "tokens/s", "tps", "ms", "s"), 1.0)


def _tag(row: Mapping[str, str]) -> str:
    found = re.match(r"\[([\w-]+)\]", row.get("notes", ""))
    return found.group(1) if found else "other"


def _clear(row: Mapping[str, str]) -> bool:
    """True if one side won by more than noise, or if a value cannot be read (declined later)."""
    first, second = _values(row)
    if first is None or second is None:
        return True
    return first > 0 and second > 0 and max(first, second) / min(first, second) > CLEAR


def _metric(words: str) -> str:
    words = lowered(words)
    if re.search(r"pool|startup|memory|power|watt|\bgb\b|gib|score|accept|bandwidth|task|turns?\b", words):
        raise Declined("not a rate or a time to first token")
    if re.search(r"ttft|first[- ]token", words):
        return "ttft_ms"
    if re.search(r"prefill|\bpp\d+ tok|prompt processing", words):
        return "prefill_tps"
    return (
        "decode_tps_aggregate"
        if re.search(r"agg|throughput|served|total", words)
        else "decode_tps_per_request"
    )
