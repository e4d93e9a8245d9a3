"""Fixtures of the tests of planning."""

from planner_fixtures import ask, sparks

__all__ = ["ask", "sparks"]
