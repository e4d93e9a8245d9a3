"""Reads usage and timing from an answer while its bytes pass, at a microsecond per chunk.

It decodes nothing on the way: it keeps the first and the last kilobytes, and searches them for `usage` at the end.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import sub
from time import perf_counter
from typing import Any, NamedTuple

_HEAD = 4 << 10
"""Bytes kept from the start: Anthropic's streams have the prompt's tokens in their first event."""
_TAIL = 8 << 10
_FRESH = 24 << 10
"""Bytes that are noted before they are counted: about a hundred tokens of a chat."""
_MOST_REPORTS = 16
"""Matches that are tried, from the last: an answer may echo a client's schema, nested a thousand times."""
_EVENT = b"\ndata:"
_NAME = b'"usage"'
_USAGE = re.compile(r'"usage"\s*:\s*(?=\{)')
_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")


class Usage(NamedTuple):
    """Tokens as the engine counted them; None if the answer has no count."""

    input: int | None = None
    output: int | None = None


class UsageMeter:
    """Watches one answer. A chunk is only noted with its time, and many are counted at once: counts are those of the last
    `settle`.

    Args:
        started: time at which the engine could begin, on `clock`.
        on_gaps: called with the seconds between chunks, of many at once.
    """

    __slots__ = (
        "_arrivals",
        "_clock",
        "_edge",
        "_fresh",
        "_head",
        "_last",
        "_on_gaps",
        "_started",
        "_tail",
        "chunks",
        "events",
        "first_s",
        "size",
    )

    def __init__(
        self,
        started: float,
        on_gaps: Callable[[Sequence[float]], None] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.chunks = 0
        self.events = 0
        """`data:` lines of an event stream, `[DONE]` included."""
        self.size = 0
        """Number of bytes so far."""
        self.first_s = 0.0
        """Seconds from `started` to the first chunk."""
        self._started = started
        self._last: float | None = None
        self._on_gaps = on_gaps
        self._clock = clock
        self._arrivals: list[float] = []
        self._fresh = bytearray()
        """Bytes that are not counted."""
        self._edge = b"\n"
        self._head = self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Takes one chunk at the moment of its arrival."""
        self._arrivals.append(self._clock())
        self._fresh += chunk
        if len(self._fresh) > _FRESH:
            self.settle()

    def settle(self) -> None:
        """Counts what has arrived."""
        arrivals, self._arrivals = self._arrivals, []
        if not arrivals:
            return
        self.chunks += len(arrivals)
        if self._last is None:
            self.first_s = arrivals[0] - self._started
        else:
            arrivals.insert(0, self._last)
        self._last = arrivals[-1]
        if self._on_gaps is not None:
            self._on_gaps(list(map(sub, arrivals[1:], arrivals)))
        fresh, self._fresh = bytes(self._fresh), bytearray()
        # A line may be cut anywhere: the last bytes are searched again, one fewer than a match needs.
        text = self._edge + fresh
        self.events += text.count(_EVENT)
        self._edge = text[1 - len(_EVENT) :]
        if self.size < _HEAD:
            self._head += fresh[: _HEAD - self.size]
        self.size += len(fresh)
        self._tail = (self._tail + fresh[-_TAIL:])[-_TAIL:]

    @property
    def beginning(self) -> bytes:
        """The first kilobytes of the answer."""
        return self._head

    @property
    def ends_between_events(self) -> bool:
        """True if the text so far ends an event, so that another one may follow."""
        self.settle()
        return self.size == 0 or self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    def usage(self) -> Usage:
        """Token usage in the engine's answer; the last of several running totals."""
        self.settle()
        found = Usage()
        for report in self._reports():
            found = Usage(
                input=_count(report, _INPUT, found.input), output=_count(report, _OUTPUT, found.output)
            )
        return found

    def _reports(self) -> Iterator[dict[str, Any]]:
        if self.size > _TAIL:
            yield from _usage_objects(self._head)
        yield from _usage_objects(self._tail)


def _usage_objects(data: bytes) -> Iterator[dict[str, Any]]:
    # Text that a model wrote cannot match: inside a JSON string the quotes are escaped.
    if (start := data.find(_NAME)) < 0:
        return
    text = data[start:].decode("utf-8", "replace")
    for match in deque(_USAGE.finditer(text), _MOST_REPORTS):
        try:
            value, _ = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue  # cut off by the edge of what was kept
        yield value


def _count(report: dict[str, Any], names: tuple[str, ...], before: int | None) -> int | None:
    for name in names:
        value = report.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return before


_DECODER = json.JSONDecoder()
