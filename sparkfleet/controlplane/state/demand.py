"""Demand for a deployment that starts with its first request: the policy decides from it."""

from __future__ import annotations

from typing import NamedTuple


class RequestDemand(NamedTuple):
    """Requests for a deployment that is on demand."""

    in_flight: int
    """Requests in flight, those that wait for its start included."""
    waiting_since: float | None
    """Time since which any waits for its start (steady clock); None: none does."""
    used_at: float
    """Time at which the last one ended, or at which the gateway began to count if there was none; the present if one is in
    flight (steady clock)."""
    unused_s: float
    """Seconds without a request, as they were reported last; 0 if one is in flight. One may have come since that report."""
    ready_since: float | None
    """Time since which it is ready (steady clock); None: it is not."""
    loaded_by: str = ""
    """The person who loads it (`sparkfleet load`), which counts as a request; "" if nobody does."""
    longest_start_s: float = 0.0
    """Seconds of the longest start of its groups since that with which it became ready, also of one that has been replaced
    since; 0: none is known."""
