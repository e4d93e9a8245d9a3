"""Prompts of a measurement: real text of a wanted length, which no engine has cached, and a task with a long answer.

The text is Python's own: source files of its standard library, and the chapters of its language reference. So nothing is
downloaded, and a draft has text to predict as that of a real user, not random words.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from sparkfleet.perf.workload import Content

CHARS_PER_TOKEN = 2.0
"""Fewer than any tokenizer has for such text: the first request is short, and its answer has the tokenizer's own count."""
_MODULES = (
    "argparse",
    "asyncio.base_events",
    "http.client",
    "inspect",
    "ipaddress",
    "logging",
    "tarfile",
    "zipfile",
)
_TASKS: dict[Content, str] = {
    "prose": "Explain in plain English, in at least 400 words, what the text above is about, and why it matters.",
    "code": "Rewrite the functions above in full, with type annotations, docstrings and better names, as code only.",
    "json": "List every name that occurs above as JSON objects with the fields name, kind and purpose, as JSON only.",
    "structured": "Make a numbered list of at least 40 statements that the text above makes, one per line.",
    "math": "Count the lines, words and names of the text above step by step, and show each step of the calculation.",
    "agent": "Apply this edit to the file above and answer with the whole file: add a docstring to each function.",
    "book": "Continue the text above in its own style, for at least 400 words.",
    "random": "Write words that have nothing to do with each other, at least 400 of them.",
}
_MIXED: Sequence[Content] = ("prose", "code", "structured", "json")
_FROM_CODE = ("code", "agent", "json")


class BenchPrompts:
    """Prompts of one length, each another one.

    Args:
        content: kind of text of the answers; `mixed`: prose, code, lists and JSON in turn.
        tokens: length of a prompt.
        seed: of the choice of its text.
    """

    def __init__(self, content: Content, tokens: int, seed: int) -> None:
        self.kinds: Sequence[Content] = _MIXED if content == "mixed" else (content,)
        self._tokens = tokens
        self._chars_per_token = dict.fromkeys(self.kinds, CHARS_PER_TOKEN)
        self._random = random.Random(seed)  # noqa: S311 (texts, no secrets)
        self._made = 0

    def next(self) -> str:
        """A prompt of the next kind, which begins with a number of its own: no prefix of it is cached."""
        self._made += 1
        return self.of(self.kinds[(self._made - 1) % len(self.kinds)])

    def of(self, kind: Content) -> str:
        """A prompt of one kind, of about as many tokens as wanted."""
        task = _TASKS[kind]
        length = max(0, round(self._tokens * self._chars_per_token[kind]) - len(task) - 40)
        text = _code() if kind in _FROM_CODE else _prose()
        start = self._random.randrange(max(1, len(text) - length))
        return f"Text {self._random.getrandbits(48)}:\n\n{text[start : start + length]}\n\n{task}"

    def learn(self, kind: Content, prompt: str, tokens: int) -> None:
        """Takes the engine's count of a prompt's tokens as the measure for further ones of its kind."""
        if tokens > 0:
            self._chars_per_token[kind] = len(prompt) / tokens


@cache
def _code() -> str:
    return "\n\n".join(inspect.getsource(import_module(name)) for name in _MODULES)


@cache
def _prose() -> str:
    """The language reference as `help()` prints it."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics))
