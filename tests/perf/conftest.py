"""Fixtures that tests of `perf` share with other packages."""

from planner_fixtures import ask, cpu_node, link, plan, root, spark, sparks

__all__ = ["ask", "cpu_node", "link", "plan", "root", "spark", "sparks"]
