"""Report of a gateway replica to the controller."""

from __future__ import annotations

from sparkfleet.values import Value


class GatewayReport(Value):
    """A gateway replica. `at` is Unix seconds."""

    replica: str
    url: str
    metrics_url: str
    at: float
