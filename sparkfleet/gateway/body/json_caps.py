"""Caps on the shape of a JSON body, checked before it is parsed. Pure.

A body of 32 MiB may have 16 million values: `json` makes some gigabytes of them, on a machine whose memory the engines use.
"""

from __future__ import annotations

import re

from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import bad_request

MOST_VALUES = 1_000_000
"""Values in one body: a prompt of a million token ids, or two million tokens of text in one string."""
MOST_DEPTH = 256
"""Levels of lists and objects: more than any published schema of tools has."""

_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},]', re.DOTALL)
_STRING, _OPEN, _CLOSE = b'"', b"[{", b"]}"


def check_caps(body: bytes | bytearray) -> None:
    """Refuses a body with more values or levels than the caps; of bad JSON it sees what comes before the fault.

    Raises:
        ApiError: 400.
    """
    values, depth = 1, 0
    for match in _TOKENS.finditer(body):
        mark = body[match.start() : match.start() + 1]
        if mark == _STRING:
            continue
        if mark in _CLOSE:
            depth -= 1
            continue
        values += 1  # a comma is followed by a value, and a list or object may have one
        if mark in _OPEN:
            depth += 1
        if values > MOST_VALUES:
            raise _too_complex(f"more than {MOST_VALUES} values")
        if depth > MOST_DEPTH:
            raise _too_complex(f"more than {MOST_DEPTH} levels of lists and objects")


def _too_complex(why: str) -> ApiError:
    return bad_request(
        f"The request body has {why}.",
        do="Send a simpler body; long texts and images belong in one string each.",
        code="too_complex",
    )
