"""Demotes candidates that did not start on this fleet, until something about them changes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import UTC, datetime

from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, Rejection, Rung
from sparkfleet.values import Value


class RememberedFailure(Value):
    """A candidate that failed to start on its nodes."""

    fingerprint: str
    """Of the candidate, its nodes and their drivers."""
    words: str
    """Reason in words."""
    until: float | None = None
    """Time from which it may be tried again as it is, Unix seconds; None: not until something about it changes."""

    @property
    def ends(self) -> str:
        """Reason for its end."""
        if self.until is None:
            return "until its image, a setting or a driver changes"
        return f"until {datetime.fromtimestamp(self.until, UTC):%Y-%m-%d %H:%M} UTC"


def fingerprint(candidate: Candidate, drivers: Collection[tuple[str, str]]) -> str:
    """The same for the same settings on the same nodes with the same drivers.

    The order of the nodes does not count, what else there is in the candidate does: image or engine's version, flags, sizes.

    Args:
        candidate: what was started, or would be.
        drivers: nodes and the version of their GPU's driver; left out: those without one.
    """
    text = candidate.model_dump_json(exclude={"shape": {"nodes"}})
    versions = dict(drivers)
    where = sorted((node, versions.get(node, "")) for node in candidate.shape.nodes)
    return hashlib.sha256(f"{text}{where}".encode()).hexdigest()[:16]


def without_failed(plan: DeploymentPlan, failed: Collection[RememberedFailure]) -> DeploymentPlan:
    """The plan with such rungs moved from the ladders to the rejected; a ladder with no other rung keeps them."""
    known = {one.fingerprint: one for one in failed}
    if not known:
        return plan
    groups, rejected = [], dict[str, Rejection]()
    for group in plan.groups:
        found = [(rung, known.get(fingerprint(rung.candidate, plan.drivers))) for rung in group.ladder]
        kept = tuple(rung for rung, failure in found if failure is None)
        for rung, failure in found if kept else ():
            if failure is not None:
                rejected[_name(rung)] = _rejection(rung, failure)
        groups.append(group.model_copy(update={"ladder": kept or group.ladder}))
    return plan.model_copy(update={"groups": tuple(groups), "rejected": (*rejected.values(), *plan.rejected)})


def _rejection(rung: Rung, failure: RememberedFailure) -> Rejection:
    reason = f"did not start here: {failure.words}; barred {failure.ends}; `sparkfleet apply --retry` tries it again"
    candidate = rung.candidate
    return Rejection(
        what=_name(rung),
        reason=reason,
        why="failed",
        engine=candidate.engine,
        methods=(candidate.speculation.method,),
    )


def _name(rung: Rung) -> str:
    candidate = rung.candidate
    return f"{candidate.shape} · {candidate.engine} {candidate.engine_version} · {candidate.speculation}"
