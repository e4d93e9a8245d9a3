"""Rejected candidates, with their reasons, rules and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from sparkfleet.planner.report.explain.layout import WIDTH, labelled, lines_of, wrap
from sparkfleet.planner.types.plan import Rejection, Why
from sparkfleet.units import plural

WIDE = 42
"""Column of a short reason behind a rejected candidate."""
SHOWN = 6
"""Reasons that are shown without `--all` if nothing can be served."""
REMEDIES = 2
"""Rules whose remedies are named if nothing can be served."""

_ORDER: tuple[str, ...] = get_args(Why)
_KINDS: dict[Why, str] = {
    "failed": "failed here",
    "rule": "known not to work",
    "memory": "too large",
    "slower": "not better",
    "wanted": "ruled out by the deployment",
    "engine": "without an image that runs it",
    "node": "without a node",
}
"""Words for kinds of reasons, behind their count."""


def other_lines(rejected: Sequence[Rejection]) -> list[str]:
    """Candidates that failed here, and one line about all others, so that the first screen has the whole plan."""
    failed, rejected = (
        [one for one in rejected if one.why == "failed"],
        [one for one in rejected if one.why != "failed"],
    )
    lines = [line for one in failed for line in lines_of("not taken", f"{one.what}: {one.reason}")]
    if not rejected:
        return lines
    counts = Counter(_KINDS[one.why] for one in rejected)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return lines + lines_of(
        "not taken", f"{plural(len(rejected), 'candidate')}: {kinds}; `--all` lists them with their reasons"
    )


def rejected_lines(rejected: Sequence[Rejection], everything: bool) -> list[str]:
    """Rejected candidates with their reasons; without `everything` one of each reason, and the first `SHOWN`."""
    counted = [(one, 0) for one in rejected] if everything else list(_grouped(rejected))
    # A broken image matters only if nothing else was rejected.
    telling = [(one, more) for one, more in counted if one.why != "engine"] or counted
    shown = counted if everything else telling[:SHOWN]
    lines = [line for one, more in shown for line in _rejection(one, more)]
    hidden = len(rejected) - sum(1 + more for _, more in shown)
    lines += [f"… {hidden} more (--all)"] if hidden else []
    return [labelled("rejected" if number == 0 else "", text) for number, text in enumerate(lines)]


def remedy_lines(rejected: Sequence[Rejection]) -> list[str]:
    """The commands with the remedies of the first rules for which nothing is served; none if no rule is the reason."""
    rules = dict.fromkeys(one.rule for one, _ in _grouped(rejected) if one.rule and one.why != "engine")
    commands = [f"`sparkfleet explain {rule}`" for rule in rules][:REMEDIES]
    return lines_of("remedy", ", ".join(commands)) if commands else []


def _grouped(rejected: Sequence[Rejection]) -> Iterator[tuple[Rejection, int]]:
    """One rejection per reason with the number of others like it: rules first; of those too large, the most nodes first."""
    found: dict[tuple[str, str], list[Rejection]] = {}
    for one in rejected:
        found.setdefault((one.why, one.rule or one.reason), []).append(one)
    order = sorted(
        found.values(), key=lambda same: (_ORDER.index(same[0].why), -same[0].ranks, -(same[0].tps or 0.0))
    )
    yield from ((same[0], len(same) - 1) for same in order)


def _rejection(one: Rejection, more: int) -> Iterator[str]:
    """The candidate and the reason with its rule and source: in one line, or if that is too long below each other."""
    what = one.what + (f" (and {more} more)" if more else "")
    cited = ", ".join(part for part in (one.rule, _short(one.source)) if part)
    reason = f"{one.reason}{f' ({cited})' if cited else ''}"
    beside = f"{what:<{WIDE}}   {reason}"
    yield from (beside,) if len(beside) <= WIDTH else (what, *wrap(reason, indent=2))


def _short(source: str) -> str:
    """A source without its explanation: "field report 001"."""
    return source.partition(" (")[0].partition(": ")[0]
