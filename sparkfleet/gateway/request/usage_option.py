"""Lets an engine report the usage of a stream whose client did not ask for it: an edit of the request's JSON. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

USAGE_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Paths whose streams have a usage only on request; Anthropic's and the Responses API always have it."""
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},:]', re.DOTALL)
_NAME = "stream_options"


class BodyEdit(NamedTuple):
    """A text in place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: str

    @property
    def growth(self) -> int:
        """Bytes by which the body becomes longer."""
        return len(self.text) - self.end + self.start


def usage_option(document: dict[str, Any], body: bytes | bytearray) -> BodyEdit | None:
    """The edit that asks for the usage of a stream; None if there is nothing to ask for, or the client asks itself.

    Args:
        body: a JSON object, which has been parsed: it is not checked again.
    """
    if document.get("stream") is not True:
        return None
    if _NAME not in document:
        start = body.index(b"{") + 1
        return BodyEdit(start, start, f'"{_NAME}":{{"include_usage":true}},')
    given = document[_NAME]
    if given is not None and not isinstance(given, dict):
        return None  # the engine reports the fault
    options = {**(given or {}), "include_usage": True}
    span = None if options == given else value_span(body, _NAME)
    return BodyEdit(*span, json.dumps(options)) if span is not None else None


def value_span(body: bytes | bytearray, name: str) -> tuple[int, int] | None:
    """Begin and end of the value of an outermost member; of several with that name the last, as parsers do."""
    depth, is_key, found, begin = 0, False, None, -1
    for match in _TOKENS.finditer(body):
        start, end = match.span()
        mark = body[start]
        if mark == 0x22:
            if depth == 1 and is_key:
                is_key = False
                begin = -2 if json.loads(bytes(body[start:end])) == name else -1
        elif mark == 0x3A:  # a colon
            if begin == -2:
                begin = end
        elif mark in b"[{":
            depth += 1
            is_key = is_key or depth == 1
        else:  # the end of a list or object, or a comma
            if depth == 1 and mark != 0x5D and begin >= 0:
                found, begin = _stripped(body, begin, start), -1
            depth -= mark != 0x2C
            is_key = mark == 0x2C and depth == 1
    return found


def _stripped(body: bytes | bytearray, start: int, end: int) -> tuple[int, int]:
    text = bytes(body[start:end])
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())
