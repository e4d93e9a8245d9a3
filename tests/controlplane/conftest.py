"""Fixtures that tests of `controlplane` share with other packages."""

import pytest
from control_fixtures import clock, engine, world

from sparkfleet.controlplane.views import routing_publisher

__all__ = ["clock", "engine", "world"]


@pytest.fixture(autouse=True)
def no_unknown_gateways(monkeypatch):
    """A controller without gateways does not wait for one to report."""
    monkeypatch.setattr(routing_publisher, "UNREPORTED_GATEWAY_S", 0.0)
