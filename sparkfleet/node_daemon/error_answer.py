"""The answer of a step that failed, as JSON for the command line."""

from __future__ import annotations

from typing import Any

from sparkfleet.errors import SparkfleetError


def error_answer(error: SparkfleetError | OSError, *, means: str = "", do: str = "") -> dict[str, Any]:
    """`error` with its three parts.

    Args:
        error: the reason.
        means: its meaning if it is one of the system, which has none of its own.
        do: the same, of the command to type.
    """
    if isinstance(error, SparkfleetError):
        return {"error": {"what": error.what, "means": error.means, "do": error.do}}
    return {"error": {"what": f"{error.filename}: {error.strerror}.", "means": means, "do": do}}
