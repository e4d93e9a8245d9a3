"""Finds an engine's report, inside a stream, that it failed, so that its `[DONE]` does not make a part look like the whole.

vLLM ends a stream whose workers have died with an error event and `[DONE]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sparkfleet.gateway.engine.usage_event import EVENT_END

_ERROR = b'"error"'
_BEGINNING = re.compile(rb'data: ?(?=\{\s*"(?:error"|type"\s*:\s*"error"))')
# Text that a model wrote cannot match: inside a JSON string the quotes are escaped.
_LONGEST_BEGINNING = 32
_LONGEST_EVENT = 16 << 10
"""Bytes of an error event: longer ones pass unread."""
_OF_THE_REQUEST = "invalid_request_error"


class FailureWatch:
    """Passes the bytes of one stream up to the end of the engine's report that it failed."""

    __slots__ = ("_rest", "failed")

    def __init__(self) -> None:
        self._rest = b""
        """The beginning of a line that may be such a report, or of the report."""
        self.failed = False
        """True once it has passed: nothing more is passed on."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client after the next ones of the engine."""
        if _ERROR not in chunk and chunk.endswith(b"\n") and not self._rest and not self.failed:
            return chunk  # the usual case: whole lines
        if self.failed:
            return b""
        data, start = self._rest + chunk, 0
        self._rest = b""
        while (found := _BEGINNING.search(data, start)) is not None:
            end = EVENT_END.search(data, found.end())
            if end is None:
                return self._hold(data, found.start(), _LONGEST_EVENT)
            if _is_report(data[found.end() : end.start()]):
                self.failed = True
                return data[: end.end()]
            start = end.end()
        return self._hold(data, max(start, data.rfind(b"\n") + 1), _LONGEST_BEGINNING)

    def rest(self) -> bytes:
        """Bytes that are left at the end of the stream, also of one that broke."""
        return self._rest

    def _hold(self, data: bytes, start: int, longest: int) -> bytes:
        if len(data) - start > longest:
            return data
        self._rest = data[start:]
        return data[:start]


def _is_report(data: bytes) -> bool:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return is_failure(document)


def is_failure(document: Mapping[str, Any]) -> bool:
    """True for an engine's report that it failed; a fault of the request is the client's to read."""
    error = document.get("error")
    if not isinstance(error, dict) or error.get("type") == _OF_THE_REQUEST:
        return False
    code = error.get("code")
    return not (isinstance(code, int) and code < 500)
