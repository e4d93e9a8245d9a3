"""Totals by key and model."""

from __future__ import annotations

from sparkfleet.gateway.accounting.usage_counter import UsageCounter
from sparkfleet.gateway.engine.usage import Usage
from sparkfleet.gateway.report import KeyUsage


def test_requests_are_counted_by_key_and_model() -> None:
    counter = UsageCounter()
    noted: list[tuple[str, str]] = []
    counter.on_count = noted.append
    counter.add("ci", "tiny", Usage(10, 2))
    counter.add("ci", "tiny", Usage(None, 3))
    counter.add("ci", "other", Usage())
    assert counter.totals() == (
        KeyUsage(key="ci", model="tiny", requests=2, uncounted=0, input=10, output=5),
        KeyUsage(key="ci", model="other", requests=1, uncounted=1),
    )
    assert noted == [("ci", "tiny"), ("ci", "tiny"), ("ci", "other")]
    assert counter.total(("ci", "none")) == KeyUsage(key="ci", model="none")
