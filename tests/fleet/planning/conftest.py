"""Fixtures of the tests of planning."""

from planner_fixtures import ask, plan, sparks

__all__ = ["ask", "plan", "sparks"]
