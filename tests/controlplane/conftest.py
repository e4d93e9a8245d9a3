"""Fixtures that tests of `controlplane` share with other packages."""

from control_fixtures import clock, engine, world

__all__ = ["clock", "engine", "world"]
