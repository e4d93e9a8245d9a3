"""Simulated DGX Sparks in network namespaces: real sshd, real cron, real links; device commands that replay captures.

A test bed, and a way to try sparkfleet without hardware. Needs root on Linux. docs/lab.md lists what is simulated and
what is not. Nothing in sparkfleet imports this package, and it imports only the errors of sparkfleet.
"""

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.lab import Lab
from sparkfleet.lab.layout import Cable, Layout, NodeLayout, SimulatedRail, SimulatedRailEnd, Topology

__all__ = [
    "Cable",
    "Lab",
    "LabError",
    "Layout",
    "NodeLayout",
    "SimulatedRail",
    "SimulatedRailEnd",
    "Topology",
]
