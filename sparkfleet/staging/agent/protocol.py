"""Far half of `agent_client.py`: a JSON request on stdin, JSON lines of `remote/agent.py` on stdout, an exit code.

Secrets are part of the request, so that they are in no argument list and in no environment.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from sparkfleet.errors import SparkfleetError
from sparkfleet.remote.agent_program import emit
from sparkfleet.staging.errors import KINDS, StagingError
from sparkfleet.values import Value

R = TypeVar("R", bound=Value)

EVERY_S = 0.5
"""Interval of progress lines. It also detects that the reader is gone: the write fails, and the program ends."""


class LineReporter:
    """Prints lines for the caller of this program. Raises BrokenPipeError if the caller is gone."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def progress(self, done_bytes: int, total_bytes: int, *, now: bool = False) -> None:
        """Report progress, at most every `EVERY_S` seconds unless `now`."""
        at_s = time.monotonic()
        if now or at_s - self._last_s >= EVERY_S:
            self._last_s = at_s
            self._emit(event="progress", done_bytes=done_bytes, total_bytes=total_bytes)

    def note(self, text: str, phase: str = "note") -> None:
        """Report a message for people."""
        self._emit(event="note", text=text, phase=phase)

    def result(self, value: Value) -> None:
        """Report the answer: once, or several times if it grows."""
        self._emit(event="result", value=value.model_dump(mode="json"))

    def error(self, error: SparkfleetError) -> None:
        """Report the error that ends the program."""
        kind = type(error).__name__ if type(error).__name__ in KINDS else StagingError.__name__
        self._emit(event="error", kind=kind, what=error.what, means=error.means, do=error.do)

    def _emit(self, **line: Any) -> None:
        emit(**line)


def program(request: type[R], work: Callable[[R, LineReporter], Value | None]) -> int:
    """Run a node's program: read the request, do the work, print the answer or the error; returns the exit code."""
    reporter = LineReporter()
    try:
        return _answered(request, work, reporter)
    except BrokenPipeError:
        return 1  # the caller is gone


def _answered(
    request: type[R], work: Callable[[R, LineReporter], Value | None], reporter: LineReporter
) -> int:
    try:
        answer = work(request.model_validate_json(sys.stdin.buffer.read()), reporter)
    except Exception as error:
        reporter.error(_worded(_leaf(error)))
        return 1
    if answer is not None:
        reporter.result(answer)
    return 0


def _leaf(error: Exception) -> Exception:
    """The first error in a task group's exception group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _worded(error: Exception) -> SparkfleetError:
    match error:
        case BrokenPipeError():
            raise error
        case SparkfleetError():
            return error
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return StagingError(
                f"the request is invalid: {where}: {first['msg']}.",
                means="The node runs another version of sparkfleet.",
                do="Bring every node to one version: `sparkfleet up`.",
            )
        case OSError():
            return _system(error)
        case _:
            raise error


def _system(error: OSError) -> StagingError:
    where = f"{error.filename}: " if error.filename else ""
    what = f"{where}{error.strerror or error}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StagingError(
            what,
            means="The disk is full. Transferred bytes are kept.",
            do="Free disk space: `sparkfleet models prune` removes models that no deployment uses.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StagingError(
            what,
            means="A container that ran as root may have made that directory.",
            do="Give sparkfleet's user on the node write permission there; of a cache `sparkfleet doctor` has the"
            " command.",
        )
    return StagingError(what)
