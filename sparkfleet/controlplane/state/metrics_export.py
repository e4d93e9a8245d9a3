"""Exports the metrics of groups to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.telemetry.metrics import ControlMetrics


def show_groups(metrics: ControlMetrics, reports: Iterable[GroupReport]) -> None:
    """Exports the phase and the draft tokens of these groups, and removes those of others."""
    metrics.group_state.clear()
    metrics.drafts.clear()
    phases = tuple(phase.value for phase in GroupPhase)
    for report in reports:
        metrics.show_state(report.deployment, report.name, report.phase.value, phases)
        if report.drafted:
            metrics.drafts.labels(report.deployment, report.name, "proposed").set(report.drafted)
            metrics.drafts.labels(report.deployment, report.name, "accepted").set(report.accepted)
