"""Collects the usage that gateways report, and writes it now and then."""

from __future__ import annotations

from collections.abc import Callable

from sparkfleet.controlplane.state.report_cache import ReportCache
from sparkfleet.controlplane.state.tables.usage_ledger import UsageLedger, UsageRow
from sparkfleet.gateway.report import GatewayReport

USAGE_S = 15.0
"""Seconds between two writes of a gateway's usage."""


class UsageCollector:
    """Usage of all gateway replicas."""

    def __init__(self, ledger: UsageLedger, reports: ReportCache, steady: Callable[[], float]) -> None:
        self._ledger = ledger
        self._reports = reports
        self._steady = steady
        self._stored_at: dict[str, float] = {}
        """Time of the last write of each replica."""

    def take(self, report: GatewayReport) -> bool:
        """Stores a replica's usage, at most every `USAGE_S`; that of all when a new one reports: another may have ended.

        True if it is stored.
        """
        now = self._steady()
        for former in report.former:
            self._ledger.add(former.replica, former.usage)
        if report.replica not in self._stored_at:
            replicas = (*self._reports.gateways(), report)
            self._stored_at = {one.replica: now for one in replicas}
            for one in replicas:
                self._ledger.add(one.replica, one.usage)
        elif now - self._stored_at[report.replica] >= USAGE_S:
            self._stored_at[report.replica] = now
            self._ledger.add(report.replica, report.usage)
        return self._stored_at[report.replica] == now

    def last_days(self, days: int) -> tuple[UsageRow, ...]:
        """Usage of the last days by day, key and model, with what the gateways have reported so far."""
        for report in self._reports.gateways():
            self._ledger.add(report.replica, report.usage)
        return self._ledger.last_days(days)
