"""The line about a prefix cache that is off or finds nothing, with what it means for a conversation."""

from __future__ import annotations

from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.plan import Rung


def prefix_lines(rung: Rung) -> list[str]:
    """The state of the prefix cache, a turn's predicted TTFT, and the field by which plans weigh it; none if it works."""
    return lines_of("prefix", *prefix_words(rung))


def prefix_words(rung: Rung) -> tuple[str, ...]:
    """The same without their label."""
    lost = rung.repeated_prefill
    if lost is None or not lost.whole:
        return ()
    state = "is off" if lost.off else "finds nothing"
    times = f"{lost.ttft_ms / 1000:.1f} s instead of {lost.cached_ttft_ms / 1000:.1f} s"
    share = (
        ""
        if lost.follow_ups == 1
        else f"; {100 * lost.follow_ups:.0f} % of requests are ranked so, with `content: agent` all"
    )
    return (
        f"cache {state} (`sparkfleet explain {lost.rule}`): each turn of a conversation is prefilled from its beginning;"
        f" after {lost.tokens:,} tokens its first word takes {times}, predicted{share}",
    )
