"""Beginnings of prompts and answers of recent requests, in memory, while an admin has switched that on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

LONGEST = 500
"""Characters that are kept of a prompt and of an answer."""
BODY_BYTES = 256 << 10
"""Longer bodies are not read for their text."""
MOST_MINUTES = 60
_TEXT = re.compile(rb'"(?:reasoning_content|content|text)"\s*:\s*"((?:[^"\\]|\\.)*)')


class TextCapture:
    """Knows until when texts are kept."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._until = 0.0

    @property
    def until(self) -> float | None:
        """Unix seconds at which it ends; None if it is off."""
        return self._until if self._clock() < self._until else None

    def begin(self, minutes: int) -> None:
        """Keeps texts from now on, for so long."""
        self._until = self._clock() + 60 * minutes

    def end(self) -> None:
        """Keeps none from now on."""
        self._until = 0.0


def prompt_of(body: bytes) -> str:
    """The beginning of the last message's text, or of the prompt; "" if there is none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, Mapping):
        return ""
    messages = document.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    given = (
        last.get("content") if isinstance(last, Mapping) else document.get("prompt", document.get("input"))
    )
    return _text(given)[:LONGEST]


def _text(given: Any) -> str:
    """The text of a message's content: a string, or parts of which some are text."""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else []
    found = [one.get("text") if isinstance(one, Mapping) else one for one in parts]
    return "\n".join(one for one in found if isinstance(one, str))


def answer_of(beginning: bytes) -> str:
    """The text in the beginning of an answer: of a stream's events, or of a whole one; "" if there is none."""
    found = [_unescaped(one) for one in _TEXT.findall(beginning)]
    return "".join(found)[:LONGEST]


def _unescaped(escaped: bytes) -> str:
    try:
        text: str = json.loads(b'"' + escaped + b'"', strict=False)
    except ValueError:  # cut in the middle of an escape
        return ""
    return text
