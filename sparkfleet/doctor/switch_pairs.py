"""Findings of measurements at a switch that have one cause. Pure.

At a switch each node is measured with the next one, so that a bad cable shows on two pairs, and a bad setting of the switch
on all of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sparkfleet.doctor.findings import Finding, Severity

SWITCH_PAIRS = 3
"""Pairs that make a switch of three nodes: with fewer, no node is in two of them."""

_PAIR = re.compile(r"(?P<one>\S+)–(?P<other>\S+) over (?P<switch>\S+)")
_RAIL = re.compile(r"rail \d+ of ")


class CommonCause(NamedTuple):
    """One finding on several pairs of nodes at a switch."""

    findings: tuple[Finding, ...]
    """The same check of the same rail, in the order of the report."""
    words: str
    """The other pairs, and what all of them have in common."""


def common_causes(findings: Iterable[Finding]) -> Iterator[CommonCause]:
    """Findings on two pairs that share a node, and those on all pairs of a switch.

    Args:
        findings: of a whole report, also those without a fault: they name the pairs that were measured.
    """
    pairs: dict[str, set[str]] = defaultdict(set)
    alike: dict[tuple[str, ...], list[tuple[re.Match[str], Finding]]] = defaultdict(list)
    for one in findings:
        pair = _PAIR.fullmatch(one.subject)
        if one.scope != "link" or pair is None:
            continue
        pairs[pair["switch"]].add(one.subject)
        if one.severity is not Severity.OK:
            rail = _RAIL.match(one.what)
            alike[pair["switch"], one.id, one.severity, rail[0] if rail else ""].append((pair, one))
    for (switch, *_), found in alike.items():
        if len(pairs[switch]) >= SWITCH_PAIRS and {one.subject for _, one in found} == pairs[switch]:
            cause = f"All pairs at {switch} have it: look at the setting of the switch, and at what all nodes share."
            yield _cause([one for _, one in found], cause)
        else:
            yield from _of_nodes(found)


def _of_nodes(found: Sequence[tuple[re.Match[str], Finding]]) -> Iterator[CommonCause]:
    """One cause for each node that is in two of these pairs; a finding has one cause at most."""
    counted = Counter(name for pair, _ in found for name in (pair["one"], pair["other"]))
    left = list(found)
    for node, number in counted.items():
        its = [(pair, one) for pair, one in left if node in (pair["one"], pair["other"])]
        if number > 1 and len(its) > 1:
            left = [one for one in left if one not in its]
            cause = f"{node} is in both: its cable, its port of the switch or its card is the likely cause."
            yield _cause([one for _, one in its], cause)


def _cause(findings: Sequence[Finding], cause: str) -> CommonCause:
    others = ", ".join(one.subject.partition(" over ")[0] for one in findings[1:])
    return CommonCause(tuple(findings), f"The same on {others}. {cause}")
