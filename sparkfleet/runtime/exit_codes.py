"""Meaning of an exit code. Stdlib only."""

from __future__ import annotations

import signal

NOT_EXECUTABLE = 126
NOT_FOUND = 127

KERNEL_KILLED = "for lack of memory in its last seconds"
"""End of a supervisor's words about processes that the kernel has killed."""
TOOL_KILLED = "out of memory, by "
"""Begin of those about a container."""

TOOL_LOST = "does not answer any more: it was stopped or restarted, and its containers end with it"
"""Words about a container whose daemon is gone."""

_CODES = {
    0: "ended by itself without an error; a rank should not end (SGLang does this when a peer dies)",
    1: "failed",
    2: "refused its arguments",
    NOT_EXECUTABLE: "is not executable",
    NOT_FOUND: "was not found",
}
_SIGNALS = {
    signal.SIGKILL: "by the kernel for lack of memory, or by a person",
    signal.SIGTERM: "another program requested its end",
    signal.SIGSEGV: "invalid memory access: a defect in the engine, a driver or a kernel",
    signal.SIGBUS: "a bus error: often /dev/shm or a disk is full",
    signal.SIGABRT: "a failed assertion or an uncaught C++ exception",
    signal.SIGILL: "illegal instruction: built for another processor",
    signal.SIGFPE: "an arithmetic error in native code",
}
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def meaning(code: int) -> str:
    """An exit code of `subprocess` (negative: a signal) in one line of words."""
    number = -code if code < 0 else code - 128
    if code < 0 or number in _SIGNALS:
        return _killed(code, number)
    return f"exited with code {code}: {_CODES.get(code, 'failed')}"


def blame_order(code: int | None, reason: str) -> int:
    """Order of the ends of ranks that depend on each other, from the likeliest cause (0) to the likeliest consequence (3).

    A rank whose peer is gone ends within a second, usually by itself: with an error, by an abort of NCCL's watchdog, or
    without an error (SGLang). Nothing but the kernel, a person or the end of its container tool kills one.

    Args:
        code: exit code of `subprocess`; None: its node or its holder is gone.
        reason: the supervisor's words.
    """
    number = 0 if code is None else -code if code < 0 else code - 128
    if code is None or number == signal.SIGKILL or is_out_of_memory(reason) or is_tool_lost(reason):
        return 0
    if number in _FAULTS:
        return 1
    return 2 if code else 3


def is_out_of_memory(reason: str) -> bool:
    """True if a supervisor's words about an end, in their first line, name a kill for lack of memory."""
    words = reason.partition("\n")[0]
    return KERNEL_KILLED in words or TOOL_KILLED in words


def is_tool_lost(reason: str) -> bool:
    """True if a supervisor's words about an end, in their first line, name a container tool that is gone."""
    return TOOL_LOST in reason.partition("\n")[0]


def _killed(code: int, number: int) -> str:
    how = "ended" if code < 0 else f"exited with code {code}: a child was ended"
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"{how} by signal {number}"
    why = _SIGNALS.get(signal.Signals(number))
    return f"{how} by {name}" + (f": {why}" if why else "")
