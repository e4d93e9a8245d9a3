"""Detects an answer that repeats itself without end, in the text of its event stream as it passes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

TOKEN = 4
"""Characters that are counted as one token: which tokens an engine chose is not in its stream."""
PROBE = 32
"""Characters whose last occurrence suggests the period of a repetition."""
STEP = 64
"""New characters between two searches."""
TIMES = 3
"""Fewest repetitions: less often, text may be repeated on purpose."""
_LONGEST_LINE = 1 << 20
"""Bytes of an event's line; a longer one is not text that a model writes piece by piece."""


class LoopDetector:
    """Watches one event stream of OpenAI's or Anthropic's API. `tokens`: repeated tokens after which it has found a loop."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.found = False
        """True once a choice of the answer has repeated the same text for that long."""
        self._rest = b""
        self._tails: dict[int, _Tail] = {}

    def feed(self, chunk: bytes) -> bool:
        """Takes the next bytes. True if a loop is found now or was before."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        for line in lines:
            if not self.found and line.startswith(b"data:"):
                self.found = any(self._repeats(index, text) for index, text in texts_of(line[5:]))
        return self.found

    def _repeats(self, index: int, text: str) -> bool:
        return self._tails.setdefault(index, _Tail(self.tokens * TOKEN)).add(text)


class _Tail:
    """The end of one choice's text. `size`: characters that have to be a repetition."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._text = ""
        self._new = 0

    def add(self, text: str) -> bool:
        """Adds a piece. True if the last characters are the same text again and again; it is searched every `STEP`."""
        self._text += text
        self._new += len(text)
        if self._new < STEP:
            return False
        self._new = 0
        self._text = self._text[-2 * self._size :]
        return self._is_periodic()

    def _is_periodic(self) -> bool:
        text, size = self._text, self._size
        probe = text[-PROBE:]
        period = len(text) - PROBE - text.rfind(probe, 0, len(text) - 1)
        if not 0 < period <= size // TIMES or len(text) < size + period:
            return False
        return text[-size:] == text[-size - period : -period]


def texts_of(data: bytes) -> Iterator[tuple[int, str]]:
    """Pieces of text in one event, each with the index of its choice: answer, reasoning, and arguments of tool calls."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return  # [DONE]
    if not isinstance(event, Mapping):
        return
    delta = event.get("delta")
    if isinstance(delta, str):  # OpenAI's Responses
        yield 0, delta
    elif isinstance(delta, Mapping):  # Anthropic
        yield from ((0, text) for text in _strings(delta, "text", "thinking", "partial_json"))
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping):
            index = choice.get("index")
            yield from ((index if isinstance(index, int) else 0, text) for text in _of_choice(choice))


def _of_choice(choice: Mapping[str, Any]) -> Iterator[str]:
    yield from _strings(choice, "text")
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return
    yield from _strings(delta, "content", "reasoning_content", "reasoning")
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield from _strings(function, "arguments")


def _strings(found: Mapping[str, Any], *names: str) -> Iterator[str]:
    return (text for name in names if isinstance(text := found.get(name), str))
