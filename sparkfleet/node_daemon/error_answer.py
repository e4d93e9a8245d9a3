"""The answer of a step that failed, as JSON for the command line."""

from __future__ import annotations

from typing import Any

from sparkfleet.errors import SURROUNDINGS, SparkfleetError

A_FILE = "a file of the fleet's state"
"""Name of a file whose error has none."""


def error_answer(error: SparkfleetError | OSError, *, means: str = "", do: str = "") -> dict[str, Any]:
    """`error` with its three parts, and with its number if it is of the node's disk: the caller has the node's name.

    Args:
        error: the reason.
        means: its meaning if it is one of the system, which has none of its own.
        do: the same, of the command to type.
    """
    if isinstance(error, SparkfleetError):
        return {"error": {"what": error.what, "means": error.means, "do": error.do}}
    found: dict[str, Any] = {
        "error": {"what": f"{error.filename or A_FILE}: {error.strerror}.", "means": means, "do": do}
    }
    return found | {"errno": error.errno} if error.errno in SURROUNDINGS else found
