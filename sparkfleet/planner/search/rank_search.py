"""The search among the proposals of a variant on one number of ranks: what waits, and what is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sparkfleet.planner.capacity.proposal import Proposal
from sparkfleet.planner.search.evaluate import Evaluation


class RankedProposal(NamedTuple):
    """A proposal in the order of its promise."""

    negative: float
    """Worth, promised or evaluated, negative: a heap has the least first."""
    order: int
    proposal: Proposal
    evaluation: Evaluation | None


@dataclass
class RankSearch:
    """Search among the proposals on one number of ranks."""

    ranks: int
    heap: list[RankedProposal]
    first: Evaluation | None = None
    """The best that passes and has room."""
    nodes: tuple[str, ...] = ()
    too_few: tuple[list[Evaluation], tuple[str, ...]] | None = None
    """The best that has room for fewer replicas than the deployment sets."""
    evaluated: int = 0
    left: list[RankedProposal] = field(default_factory=list)
