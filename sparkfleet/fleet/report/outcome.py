"""Outcome of an applied deployment: the rung that runs, why not a higher one, and what that costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.controlplane.policy.ladder import cost_words
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.planning.group_measurements import rung_of
from sparkfleet.group.report import GroupReport
from sparkfleet.planner.types.plan import GroupPlan, Rung

RETRY = "When the cause is mended: `sparkfleet apply FILE --retry`, with its file, begins at rung 1 again."
"""The last line about a failed deployment."""


def rung_lines(deployment: DeploymentStatus, report: GroupReport) -> Iterator[str]:
    """Lines for a ready group: its rung, the failures of those above it, and the loss against the first one."""
    rung = rung_of(deployment, report)
    at = deployment.index_of(report.group)
    if rung is None or deployment.plan is None or at is None:
        return
    ladder = deployment.plan.groups[at].ladder
    yield f"rung {report.rung + 1} of {len(ladder)}: {rung.candidate}"
    if report.rung:
        yield from _passed_lines(ladder, _passed(deployment, at)[: report.rung])
        yield _lost(ladder[0], rung)


def failed_lines(deployment: DeploymentStatus) -> Iterator[str]:
    """Lines for a failed deployment: the failure of each rung that was tried."""
    groups: Sequence[GroupPlan] = deployment.plan.groups if deployment.plan else ()
    for at, group in enumerate(groups):
        where = f"group {at}: " if len(groups) > 1 else ""
        for line in _passed_lines(group.ladder, _passed(deployment, at)):
            yield f"{where}{line}"


def _passed(deployment: DeploymentStatus, replica: int) -> tuple[str, ...]:
    return deployment.passed[replica] if replica < len(deployment.passed) else ()


def _passed_lines(ladder: Sequence[Rung], passed: Sequence[str]) -> Iterator[str]:
    for number, (rung, why) in enumerate(zip(ladder, passed, strict=False), start=1):
        yield f"rung {number} not used, {rung.candidate}: {why}"


def _lost(first: Rung, rung: Rung) -> str:
    """The loss against the first rung, in predicted tok/s of one request alone."""
    before, after = first.prediction.decode_tps_per_request, rung.prediction.decode_tps_per_request
    if before is None or after is None or not before.mid:
        return "against rung 1: the difference in speed is not predicted"
    return f"against rung 1: {cost_words(first, rung)} ({100 * (after.mid / before.mid - 1):+.0f} %)"
