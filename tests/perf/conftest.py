"""Fixtures that tests of `perf` share with other packages."""

from planner_fixtures import ask, plan, sparks

__all__ = ["ask", "plan", "sparks"]
