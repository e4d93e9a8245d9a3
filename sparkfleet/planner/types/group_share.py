"""Shares of a deployment's `concurrency`: the requests at once that each of its groups is sized for. Pure.

The gateway distributes requests evenly, and those beyond the shares wait in its queue (decision 128 of docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkfleet.planner.types.plan import GroupPlan
from sparkfleet.specs.deployment import Variant


def requests_share(requests: int, groups: int) -> int:
    """Requests of one of so many groups, if they are distributed evenly: the largest share."""
    return -(-requests // groups)


def shared(requests: int | None, each: int) -> int | None:
    """`GroupPlan.shared_concurrency` of a group that was sized for `each` of the requests that the deployment sets."""
    return None if requests == each else requests


def share_that_runs(variant: Variant, running: Sequence[GroupPlan]) -> int | None:
    """The share that running groups were sized for, if the deployment sets as many requests as then; None otherwise.

    Another number of groups alone is no reason to start engines again.

    Args:
        variant: what is to be served.
        running: its groups that run now.
    """
    shares = {
        one.choice.candidate.concurrency
        for one in running
        if (one.shared_concurrency or one.choice.candidate.concurrency) == variant.concurrency
        and one.choice.candidate.model == variant.model
    }
    return max(shares, default=None)
