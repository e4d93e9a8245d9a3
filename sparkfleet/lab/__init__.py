"""Simulated DGX Sparks in network namespaces: real sshd, real cron, real links; device commands that replay captures.

A test bed and a way to try sparkfleet without hardware. Needs root on Linux. What is simulated, and what is not, is
said in docs/lab.md. Nothing in sparkfleet imports this package, and it imports nothing of it but the errors.
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
