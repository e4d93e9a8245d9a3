"""Versions: sparkfleet, Ray and Python are equal on all nodes."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor.check import Check, fleet_check, node_check
from sparkfleet.doctor.checks.agreement import differing, values
from sparkfleet.doctor.findings import CheckFault, error, note
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.hostfacts.venv import PythonEnvironment

UP = "sparkfleet up   # installs the same versions on every node"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@fleet_check("ray-same", "Ray has one version on all nodes")
def ray_same(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares Ray's versions: Ray refuses nodes of another version of Ray or Python."""
    if differences := differing(values(fleet, lambda node: node.python.ray if node.python else None)):
        yield error(
            f"Ray versions differ: {differences}",
            means="Ray refuses nodes of another version: the fleet cannot come up.",
            do=UP,
        )


@fleet_check("sparkfleet-same", "sparkfleet has one version on all nodes")
def sparkfleet_same(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares sparkfleet's versions, with the one on this machine."""
    found = dict(values(fleet, lambda node: node.python.sparkfleet if node.python else None))
    if fleet.sparkfleet and found:
        found[fleet.sparkfleet] = [*found.get(fleet.sparkfleet, []), "this machine"]
    if differences := differing(found):
        yield error(
            f"sparkfleet versions differ: {differences}",
            means="Controller, groups and gateway would exchange messages of different versions.",
            do=UP,
        )


@fleet_check("python-same", "Python has one minor version on all nodes")
def python_same(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares Python's minor versions in the environments that have Ray."""
    found = values(
        fleet, lambda node: _minor(node.python.python) if node.python and node.python.ray else None
    )
    if differences := differing(found):
        yield error(
            f"Python versions differ: {differences}",
            means="Ray refuses nodes with another minor version of Python.",
            do=UP,
        )


@node_check("sparkfleet-installed", "sparkfleet and Ray are installed")
def sparkfleet_installed(node: NodeSnapshot, python: PythonEnvironment) -> Iterator[CheckFault]:
    """Reports missing packages, as before the first `up`."""
    lacking = [
        name for name, version in (("sparkfleet", python.sparkfleet), ("Ray", python.ray)) if not version
    ]
    if lacking:
        yield note(f"{node.name}: {' and '.join(lacking)} not installed yet", do=UP)


CHECKS: tuple[Check, ...] = (ray_same, sparkfleet_same, python_same, sparkfleet_installed)
