"""The rate of a group's first streams: when they give one, and the words if they do not. Pure."""

from __future__ import annotations

from collections.abc import Mapping

MOST_SPREAD = 1.0
"""Largest spread of streams that give a rate: the difference of the fastest and the slowest, divided by their median.

The median rate of an engine is between the slowest and the fastest of three streams in 3 of 4 cases: each stream is above
it in 1 of 2, all three are above or all below it in 2 of 8. If the two ends are further apart than the median itself, the
error of the figure is as large as the figure, and wider than the band of a prediction that it would check."""


def unknown_rate_words(measured: Mapping[str, float]) -> str:
    """`tok/s not known: its 3 streams are 250% apart`; "" for readings with a rate, and before they are taken.

    Args:
        measured: readings of a group's start, by name.
    """
    spread = measured.get("decode_tps_spread")
    if spread is None or "decode_tps" in measured:
        return ""
    return f"tok/s not known: its {measured.get('measured_runs', 1):.0f} streams are {spread:.0%} apart"
