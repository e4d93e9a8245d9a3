"""Hides the usage event of a stream whose client did not ask for it, so that it gets the stream that it would have got."""

from __future__ import annotations

import re

EVENT_END = re.compile(rb"\r?\n\r?\n")
_NO_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_NO_USAGE = re.compile(rb'\s*,\s*"usage"\s*:\s*null')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_FINGERPRINT = re.compile(rb'\s*,\s*"system_fingerprint"\s*:\s*"[^"\\]*"')
# Text that a model wrote cannot match: inside a JSON string the quotes are escaped.


class UsageHider:
    """Takes the usage out of one stream of OpenAI's chat or completions.

    vLLM moves its `system_fingerprint` from the last chunk of an answer to the usage event if there is one: that chunk waits
    for the next event, and gets it back.

    Args:
        nulls: take `"usage": null` out of the other events, too: OpenAI adds it only if the usage is asked for, and
            SGLang always.
    """

    __slots__ = ("_last", "_nulls", "_rest")

    def __init__(self, *, nulls: bool = False) -> None:
        self._nulls = nulls
        self._rest = b""
        """The beginning of an event."""
        self._last = b""
        """The event that ends the answer's text, until the next one."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client after the next ones of the engine."""
        if (
            not self._rest
            and not self._last
            and chunk.endswith(b"\n\n")
            and b'"usage"' not in chunk
            and _FINISH.search(chunk) is None
        ):
            return chunk  # the usual case: whole events
        data, start, passed = self._rest + chunk, 0, []
        for match in EVENT_END.finditer(data):
            passed.append(self._passed(data[start : match.end()]))
            start = match.end()
        self._rest = data[start:]
        return b"".join(passed)

    def rest(self) -> bytes:
        """Bytes that are left at the end of the stream, also of one that broke."""
        left, self._last, self._rest = self._last + self._rest, b"", b""
        return left

    def _passed(self, event: bytes) -> bytes:
        last, self._last = self._last, b""
        if _NO_CHOICE.search(event) and _USAGE.search(event):
            return _with_fingerprint(last, event)
        if self._nulls:
            event = _NO_USAGE.sub(b"", event)
        if _FINISH.search(event) is None:
            return last + event
        self._last = event
        return last


def _with_fingerprint(last: bytes, usage: bytes) -> bytes:
    """The last chunk with the fingerprint of the usage event, if that alone has one."""
    found = _FINGERPRINT.search(usage)
    end = last.rfind(b"}")
    if found is None or end < 0 or _FINGERPRINT.search(last):
        return last
    return last[:end] + found[0] + last[end:]
