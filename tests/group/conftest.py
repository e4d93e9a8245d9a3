"""Fixtures of the tests of `group`."""

import pytest
from control_fixtures import clock, engine
from group_world import quick_world

__all__ = ["clock", "engine"]


@pytest.fixture
def world(engine, monkeypatch, tmp_path):
    """A group on fakes that starts without pauses."""
    return quick_world(engine, monkeypatch, tmp_path)
