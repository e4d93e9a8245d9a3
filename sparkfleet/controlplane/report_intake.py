"""Intake of the reports of groups and gateways: counted, measured, recorded as events, and passed to the policy."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.controlplane.clocks import Clocks
from sparkfleet.controlplane.draft_collector import DraftCollector
from sparkfleet.controlplane.effects import Effects
from sparkfleet.controlplane.gateway_control import GatewayControl
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy.phase_change import on_report
from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.report_cache import ReportOrder
from sparkfleet.controlplane.state.tables.draft_traffic import draft_setup_of
from sparkfleet.controlplane.state.usage_collector import UsageCollector
from sparkfleet.controlplane.views.ready_words import ready_words, speed_words
from sparkfleet.controlplane.views.start_phases import StartPhases
from sparkfleet.errors import Cause
from sparkfleet.gateway.report import GatewayReport
from sparkfleet.group.report import BEGINNING, GroupPhase, GroupReport
from sparkfleet.runtime.hang_guard import FRESH_S
from sparkfleet.telemetry.metrics import ControlMetrics


class ReportIntake:
    """Takes reports.

    Args:
        fleet: keeps the newest of each group and gateway.
        gateways: get the table as soon as a group is ready.
        wake: lets the controller begin a round now.
    """

    def __init__(
        self,
        *,
        fleet: ObservedFleet,
        effects: Effects,
        gateways: GatewayControl,
        usage: UsageCollector,
        drafts: DraftCollector,
        event_log: EventLog,
        metrics: ControlMetrics,
        clocks: Clocks,
        wake: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._effects = effects
        self._gateways = gateways
        self._usage = usage
        self._drafts = drafts
        self._event_log = event_log
        self._metrics = metrics
        self._clocks = clocks
        self._wake = wake
        self._phases = StartPhases(metrics, lambda: clocks().steady)

    async def report(self, report: GroupReport) -> None:
        """Takes a group's report. One that a newer one has overtaken is dropped."""
        order = self._fleet.reports.order(report)
        if order is ReportOrder.LATE and report.phase is GroupPhase.FAILED:
            await self._failed_late(report)
        if order is not ReportOrder.NEWEST:
            return
        before = self._fleet.reports.newest(report.name)
        self._phases.see(report)
        self._fleet.forecast.see(report)
        candidate = self._fleet.candidate_of(report)
        self._drafts.take(report, draft_setup_of(candidate) if candidate else None)
        if self._fleet.reports.group(report):
            try:
                await self._phase_changed(report)
            except Exception:  # the store refused it, as on a full disk
                self._fleet.reports.repeat(report.name)
                raise
        elif before is not None and before.measured != report.measured and (speed := speed_words(report)):
            await self._record(report, "measured", speed)
        elif (
            report.phase in BEGINNING and report.detail and (before is None or before.detail != report.detail)
        ):
            await self._record_once(report, "progress", report.detail)
        # After the report is known: it may not wait for its event, nor be lost with it. Each actor that tries to start the
        # group finds the same end.
        if report.lost and not self._is_known(report):
            await self._record_once(report, "lost", report.lost)

    async def register_gateway(self, report: GatewayReport) -> bool:
        """Takes a gateway replica's report of its address and its usage. True if that is stored."""
        # First: on a full disk a gateway that serves is still known.
        is_new = self._fleet.reports.gateway(report)
        if self._fleet.demand.take(report):
            self._wake()
        self._fleet.store.keys.use(report.keys_used)
        is_stored = self._usage.take(report)
        if is_new:
            words = f"gateway listening on {report.url}"
            words += f"; {report.trouble}" if report.trouble else ""
            words += f"; the one before: {report.after}" if report.after else ""
            words += f"; {report.usage_trouble}" if report.usage_trouble else ""
            await self._event_log.record("", 0, report.replica, "gateway", words)
        return is_stored

    def _is_known(self, report: GroupReport) -> bool:
        """True if the group's last actor has reported the same end itself."""
        recent = self._fleet.store.events.since(
            report.name, GroupPhase.FAILED.value, self._clocks().unix - FRESH_S
        )
        return any(event.message == report.lost for event in recent)

    async def _failed_late(self, report: GroupReport) -> None:
        """Counts the failure of an actor that has been replaced, and leaves the group as its present actor reports it."""
        # What follows from it ends the record of the present start, which the next report begins again.
        self._fleet.reports.repeat(report.name)
        await self._phase_changed(report)

    async def _phase_changed(self, report: GroupReport) -> None:
        words = report.detail
        if report.phase is GroupPhase.READY:
            self._fleet.demand.started(report.deployment, report.started_s or 0.0)
        state = self._fleet.state()
        await self._effects.carry_out(on_report(state, report, self._clocks()), state)
        if report.phase is GroupPhase.READY:
            words = ready_words(report, self._fleet.rung_of(report))
            self._metrics.starts.labels(report.deployment, "adopted" if report.adopted else "ready").inc()
            if report.started_s is not None:
                self._metrics.start.labels(report.deployment).observe(report.started_s)
            self._event_log.settle(report.name)
        if report.phase in (GroupPhase.READY, GroupPhase.FAILED):
            await self._gateways.publish()  # not by a round alone: it may wait for Ray Serve
        if report.phase is GroupPhase.FAILED:
            self._count_failure(report)
        await self._record(report, report.phase.value, words)
        self._wake()

    def _count_failure(self, report: GroupReport) -> None:
        cause = report.diagnosis.cause if report.diagnosis else Cause.UNKNOWN
        self._metrics.restarts.labels(report.deployment, cause.value).inc()
        if report.complaint:
            self._metrics.canary_failures.labels(report.deployment).inc()

    async def _record(self, report: GroupReport, kind: str, words: str) -> None:
        await self._event_log.record(report.deployment, report.generation, report.name, kind, words)

    async def _record_once(self, report: GroupReport, kind: str, words: str) -> None:
        await self._event_log.record_once(report.deployment, report.generation, report.name, kind, words)
