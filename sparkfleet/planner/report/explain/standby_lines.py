"""Places where groups go on if a node is lost, of the head with the command, and what `standby: true` would keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.planner.report.explain.layout import lines_of
from sparkfleet.planner.types.node_load import StandbyOffer
from sparkfleet.planner.types.plan import GroupPlan, Rung
from sparkfleet.specs.deployment import Objective
from sparkfleet.units import gib


def standby_lines(replicas: Sequence[GroupPlan], objective: Objective, head: str) -> list[str]:
    """The rungs that do without a node of their group's choice, each with that node, its speed, and what else differs."""
    return lines_of("node lost", *(text for group in replicas for text in _standbys(group, objective, head)))


def offer_lines(offers: Sequence[StandbyOffer], head: str) -> list[str]:
    """Memory that `standby: true` would keep for a deployment that waits for its only node."""
    return lines_of("node lost", *(_offer(one, head) for one in offers))


def _standbys(group: GroupPlan, objective: Objective, head: str) -> Iterator[str]:
    first = group.choice.candidate
    for number, rung in enumerate(group.ladder, start=1):
        if not group.is_elsewhere(rung):
            continue
        candidate = rung.candidate
        lost = [node for node in first.shape.nodes if node not in candidate.shape.nodes]
        stack = candidate.stack if candidate.stack != first.stack else ""
        method = str(candidate.speculation) if candidate.speculation != first.speculation else ""
        parts = filter(None, (str(candidate.shape), stack, method, rung.speed(objective)))
        yield f"without {_lost_words(lost, head)}: rung {number}, {' · '.join(parts)}{_after_move(rung, lost, head)}"


def _offer(one: StandbyOffer, head: str) -> str:
    waits = f"without {_lost_words([one.lost], head)}: it waits"
    return f"{waits}; `standby: true` would keep {gib(one.bytes)} on {one.node} for it"


def _lost_words(nodes: Sequence[str], head: str) -> str:
    """The nodes in words, the head last."""
    names = sorted(nodes, key=lambda node: node == head)
    return " or ".join(f"{node}, the head" if node == head else node for node in names)


def _after_move(rung: Rung, lost: Sequence[str], head: str) -> str:
    """The command that has to be typed before a group goes on without the head; "" if the head is not among the lost."""
    if head not in lost:
        return ""
    command = f"`sparkfleet move-head {rung.candidate.shape.nodes[0]} --lost`"
    return f", after {command}" if len(lost) == 1 else f", of {head} after {command}"
