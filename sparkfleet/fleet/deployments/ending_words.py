"""Words for groups that end, with the requests that they finish first."""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.group.report import GroupPhase, GroupReport

NAMED = 2
"""Groups that are named; the others are counted."""


def ending_words(groups: Iterable[GroupReport]) -> str:
    """`m/g1/0 draining (2 requests)`: the groups that have not ended; "" if all have."""
    found = [one for one in groups if one.phase is not GroupPhase.STOPPED]
    more = f" and {len(found) - NAMED} more groups" if len(found) > NAMED + 1 else ""
    named = found[:NAMED] if more else found
    return "; ".join(map(_group_words, named)) + more


def _group_words(group: GroupReport) -> str:
    count, what = group.running + group.waiting, "connection" if group.counts_connections else "request"
    left = f" ({count} {what}{'s' if count > 1 else ''})" if count else ""
    return f"{group.name} {group.phase.value}{left}"
