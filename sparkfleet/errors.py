"""Every error that sparkfleet raises on purpose.

    SparkfleetError            exit 1   base: the fact, its meaning, the remedy
    ├── SpecError              exit 1   a file or an argument that a person wrote is wrong (file, line, field)
    ├── FactError              exit 1   a fact read from a node or a checkpoint is unusable
    ├── Infeasible             exit 3   a deployment does not fit the fleet
    ├── NodeError              exit 1   a node could not be reached, or a command on it failed
    │   └── UnreachableError   exit 4   the head cannot be reached: it is not known if the fleet is up
    ├── EngineError            exit 1   an engine did not start, or died
    └── ControlError           exit 1   the controller does not answer, or refused
        ├── UnreadableStateError exit 5   the fleet's state cannot be read, or its store cannot be used
        └── WrongFleetError    exit 6   another fleet answers

Exit codes are part of the public interface; `cli/exit_codes.py` names the others.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import ClassVar

SURROUNDINGS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR})
"""Errors of the file system that are no defect of sparkfleet."""


class Cause(StrEnum):
    """Causes of a failed start, most credible first. `engines/failure_signatures.py` recognises most of them."""

    KNOWN = "known"
    MEMORY = "memory"
    PORT = "port"
    MISSING = "missing"
    FLAG = "flag"
    AWAY = "away"
    TOOL = "tool"
    TRANSIENT = "transient"
    UNKNOWN = "unknown"


class SparkfleetError(Exception):
    """An error with its meaning and its remedy.

    Args:
        what: what happened, one sentence, with the offending value.
        means: what follows from it, or "" if it is obvious.
        do: what the user can do about it, or "" if nothing is known.
        because: the cause of an engine's failed start, if it is known; None elsewhere.
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
        # Ray pickles exceptions, and pickle does not pass keyword-only arguments.
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
    """A fact of a node or a checkpoint that cannot be used."""


class Infeasible(SparkfleetError):
    """A deployment does not fit the fleet."""

    exit_code = 3


class NodeError(SparkfleetError):
    """A node could not be reached, or a command on it could not be run."""


class EngineError(SparkfleetError):
    """An engine did not start, or died."""


class ControlError(SparkfleetError):
    """The controller does not answer, or refused."""


class UnreachableError(NodeError):
    """The head of a fleet cannot be reached: it is not known if the fleet is up."""

    exit_code = 4


class UnreadableStateError(ControlError):
    """A file of a fleet's state cannot be read, its controller does not answer, or its store cannot be used."""

    exit_code = 5


class WrongFleetError(ControlError):
    """Another fleet than the inventory's answers."""

    exit_code = 6
