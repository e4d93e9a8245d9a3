"""Every error that sparkfleet raises on purpose.

    SparkfleetError            exit 1   base: what happened, what it means, what to do
    ├── SpecError              exit 1   something a person wrote is wrong (file, line, field)
    ├── FactError              exit 1   something read from a node or a checkpoint is unusable
    ├── Infeasible             exit 3   nothing that was asked for fits the fleet
    ├── NodeError              exit 1   a node could not be reached or refused a command
    ├── EngineError            exit 1   an engine did not start or died
    └── ControlError           exit 1   the controller is not there or refused

Exit codes are part of the public interface; `cli/exit_codes.py` names the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Cause(StrEnum):
    """Causes of a failed start, most credible first. `engines/failure_signatures.py` recognises most of them."""

    KNOWN = "known"
    MEMORY = "memory"
    PORT = "port"
    MISSING = "missing"
    FLAG = "flag"
    AWAY = "away"
    TRANSIENT = "transient"
    UNKNOWN = "unknown"


class SparkfleetError(Exception):
    """An error with its meaning and its remedy.

    Args:
        what: what happened, one sentence, with the offending value.
        means: what follows from it, or "" if it is obvious.
        do: what the user can do about it, or "" if nothing is known.
        because: why an engine does not start, where whoever raises this knows; None elsewhere.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, means: str = "", do: str = "", because: Cause | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.means = means
        self.do = do
        self.because = because  # not `cause`: so Ray names the error itself in the one that it wraps it in

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.means, self.do) if part)

    def __reduce__(self) -> tuple[object, ...]:
        # Ray pickles exceptions; keyword-only arguments need a hand.
        return (_rebuild, (type(self), self.what, self.means, self.do, self.because))


def _rebuild(
    cls: type[SparkfleetError], what: str, means: str, do: str, because: Cause | None = None
) -> SparkfleetError:
    error = cls.__new__(cls)
    SparkfleetError.__init__(error, what, means=means, do=do, because=because)
    return error


class SpecError(SparkfleetError):
    """A file that a person wrote is wrong. `what` starts with `file:line: field:`."""


class FactError(SparkfleetError):
    """A node or a checkpoint said something that cannot be used."""


class Infeasible(SparkfleetError):
    """Nothing that was asked for fits the fleet."""

    exit_code = 3


class NodeError(SparkfleetError):
    """A node could not be reached, or a command on it could not be run."""


class EngineError(SparkfleetError):
    """An engine did not start, or died."""


class ControlError(SparkfleetError):
    """The controller is not there, or refused."""
