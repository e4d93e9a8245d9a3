"""Fixtures that tests of `group` share with other packages."""

from control_fixtures import clock, engine, world

__all__ = ["clock", "engine", "world"]
