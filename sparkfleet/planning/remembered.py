"""What has not started on this very fleet is not tried first again, until something about it changes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from sparkfleet.planning.plan import Candidate, DeploymentPlan, Rejection, Rung
from sparkfleet.values import Value


class Remembered(Value):
    """A candidate that did not start on a node."""

    fingerprint: str
    """Of the candidate: another image, context or flag is another candidate."""
    node: str
    """Of rank 0."""
    words: str
    """Why, for people."""


def fingerprint(candidate: Candidate) -> str:
    """The same for the same settings, wherever they are tried."""
    told = candidate.model_dump_json(exclude={"shape": {"nodes"}})
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def without_failed(plan: DeploymentPlan, failed: Collection[Remembered]) -> DeploymentPlan:
    """The plan with such rungs taken out of the ladders, and told among the rejected. The last rung of a ladder stays."""
    known = {(one.fingerprint, one.node): one for one in failed}
    if not known:
        return plan
    groups, rejected = [], dict[str, Rejection]()
    for group in plan.groups:
        kept = [rung for rung in group.ladder if _key(rung) not in known]
        for rung in group.ladder:
            if kept and (found := known.get(_key(rung))) is not None:
                what = _name(rung)
                rejected[what] = Rejection(what=what, reason=f"did not start here: {found.words}", why="node")
        groups.append(group.model_copy(update={"ladder": tuple(kept) or group.ladder}))
    return plan.model_copy(update={"groups": tuple(groups), "rejected": (*rejected.values(), *plan.rejected)})


def _key(rung: Rung) -> tuple[str, str]:
    return fingerprint(rung.candidate), rung.candidate.shape.nodes[0]


def _name(rung: Rung) -> str:
    candidate = rung.candidate
    return f"{candidate.shape} · {candidate.engine} {candidate.engine_version} · {candidate.speculation}"
