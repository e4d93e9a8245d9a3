"""Fixtures of the tests of use-cases."""

from planner_fixtures import cpu_node, plan, sparks

__all__ = ["cpu_node", "plan", "sparks"]
