"""Result of a run of the simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class RunReport:
    """Result of one run."""

    seed: int
    hours: float
    rounds: int
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
