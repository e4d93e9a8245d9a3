"""Findings of checks."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from sparkfleet.values import Value

CheckScope = Literal["node", "link", "fleet"]


class Severity(StrEnum):
    """Severity, worst first."""

    ERROR = "error"
    """Serving fails or is several times too slow, or a person or program has access that they must not have."""
    WARNING = "warning"
    """It works, but there is a known way in which it will fail."""
    UNKNOWN = "unknown"
    """Could not be determined; the finding has the reason."""
    INFO = "info"
    OK = "ok"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Finding(Value):
    """One sentence about one node, link or the fleet, with its meaning and the exact remedy."""

    id: str
    severity: Severity
    scope: CheckScope
    subject: str
    """The node's or link's name; the fleet's if it is about all of them."""
    what: str
    means: str = ""
    do: tuple[str, ...] = ()
    """Commands and steps, in order."""
    source: str = ""
    """Source of the rule or the threshold."""
    evidence: dict[str, str] = Field(default_factory=dict)
    """Values that were read, by name."""


class CheckFault(Value):
    """Result of a check before it is attributed to a node or link."""

    severity: Severity
    what: str
    means: str = ""
    do: tuple[str, ...] = ()
    evidence: dict[str, str] = Field(default_factory=dict)


def _fault(
    severity: Severity, what: str, means: str, do: str | tuple[str, ...], evidence: dict[str, object]
) -> CheckFault:
    steps = (do,) if isinstance(do, str) else do
    return CheckFault(
        severity=severity,
        what=what,
        means=means,
        do=tuple(step for step in steps if step),
        evidence={name: str(value)[:300] for name, value in evidence.items()},
    )


def error(what: str, *, means: str = "", do: str | tuple[str, ...] = (), **evidence: object) -> CheckFault:
    """A fault that has to be repaired."""
    return _fault(Severity.ERROR, what, means, do, evidence)


def warning(what: str, *, means: str = "", do: str | tuple[str, ...] = (), **evidence: object) -> CheckFault:
    """A fault that will become an error."""
    return _fault(Severity.WARNING, what, means, do, evidence)


def note(what: str, *, means: str = "", do: str | tuple[str, ...] = (), **evidence: object) -> CheckFault:
    """A fact that is good to know."""
    return _fault(Severity.INFO, what, means, do, evidence)


def not_known(what: str) -> CheckFault:
    """A check that could not be decided."""
    return _fault(Severity.UNKNOWN, what, "", (), {})
