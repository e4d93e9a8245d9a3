"""Draft tokens of a deployment's own requests: what an engine was started with, and what it has counted since."""

from __future__ import annotations

from itertools import zip_longest

from sparkfleet.group.report import GroupReport
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.values import Value

UNCOUNTED = ("none", "ngram")
"""Methods without steps that are all counted: a step for which the text gives no draft is none to the engines."""


class DraftSetup(Value):
    """Model, draft and depths with the engine that verifies: acceptance depends on them and on the text.

    Not the load, nor the nodes: a depth by load shows in the number of proposed tokens.
    """

    model: str
    engine: str
    speculation: Speculation


class DraftCounts(Value):
    """Counted steps of speculation, each the verification of one request's draft."""

    steps: float = 0.0
    proposed: float = 0.0
    """Draft tokens."""
    accepted: float = 0.0
    by_position: tuple[float, ...] = ()
    """The accepted ones by their position in the draft; () if the engine does not count them."""

    def plus(self, other: DraftCounts, share: float = 1.0) -> DraftCounts:
        """The sum with a share of others. Positions are kept only if both have some."""
        pairs = zip_longest(self.by_position, other.by_position, fillvalue=0.0)
        positions = tuple(mine + share * theirs for mine, theirs in pairs)
        if self.steps and not (self.by_position and other.by_position):
            positions = ()
        return DraftCounts(
            steps=self.steps + share * other.steps,
            proposed=self.proposed + share * other.proposed,
            accepted=self.accepted + share * other.accepted,
            by_position=positions,
        )

    def since(self, before: DraftCounts) -> DraftCounts | None:
        """Returns the counts since; None if a counter is lower: another engine counts."""
        more = DraftCounts(
            steps=self.steps - before.steps,
            proposed=self.proposed - before.proposed,
            accepted=self.accepted - before.accepted,
            by_position=_differences(self.by_position, before.by_position),
        )
        return None if min(more.steps, more.proposed, more.accepted, *more.by_position) < 0 else more


def _differences(now: tuple[float, ...], before: tuple[float, ...]) -> tuple[float, ...]:
    """Subtracts by position; a position that was not there counted nothing before."""
    earlier = (*before, *(0.0 for _ in now[len(before) :]))
    return tuple(mine - theirs for mine, theirs in zip(now, earlier, strict=False))


class DraftTraffic(Value):
    """Draft tokens of a deployment's requests with one setup over the last days."""

    setup: DraftSetup
    since: float
    """Begin of the first hour in which there were any, Unix seconds."""
    steps: int
    """All steps that were counted."""
    counts: DraftCounts
    """The same, of each hour no more than a part (`tables/draft_hours.py`): one benchmark is not the traffic of days."""


def counts_of(report: GroupReport) -> DraftCounts:
    """Counters of a group's engine since it started."""
    return DraftCounts(
        steps=report.draft_steps,
        proposed=report.drafted,
        accepted=report.accepted,
        by_position=report.accepted_by_position,
    )


def draft_setup_of(candidate: Candidate) -> DraftSetup | None:
    """Returns the setup of a candidate's drafts; None if its steps cannot be counted.

    That is so without drafts, with drafts from the text itself, and with SGLang's depth by load, as it counts no proposed
    tokens.
    """
    wanted = candidate.speculation
    if wanted.method in UNCOUNTED or (candidate.engine == "sglang" and wanted.busy is not None):
        return None
    return DraftSetup(model=candidate.model, engine=candidate.engine, speculation=wanted)
