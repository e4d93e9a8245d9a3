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
from typing import NamedTuple

from sparkfleet.perf.workload import Content

CHARS_PER_TOKEN = 2.0
"""Fewer than any tokenizer has for such text: the first request is short, and its answer has the tokenizer's own count."""
EXCERPT = 1000
"""Characters of one excerpt. One section of text has another number of characters for a token than the next: of Mistral's
two tokenizers prompts of 2,048 tokens had 1,190 to 3,280, and the median of three 1,560 to 2,750; of excerpts from many
places 1,660 to 2,600, and the median of three 1,800 to 2,350."""
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


class BenchPrompt(NamedTuple):
    """One prompt."""

    kind: Content
    text: str


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
        self._chars = dict.fromkeys(self.kinds, 0)
        self._counted = dict.fromkeys(self.kinds, 0)
        self._random = random.Random(seed)  # noqa: S311 (texts, no secrets)
        self._made = 0

    def next(self) -> BenchPrompt:
        """A prompt of the next kind, which begins with a number of its own: no prefix of it is cached."""
        self._made += 1
        return self.of(self.kinds[(self._made - 1) % len(self.kinds)])

    def of(self, kind: Content) -> BenchPrompt:
        """A prompt of one kind, of about as many tokens as wanted."""
        task = _TASKS[kind]
        chars_per_token = self._chars[kind] / self._counted[kind] if self._counted[kind] else CHARS_PER_TOKEN
        text = self._excerpts(kind, max(0, round(self._tokens * chars_per_token) - len(task) - 40))
        return BenchPrompt(kind, f"Text {self._random.getrandbits(48)}:\n\n{text}\n\n{task}")

    def learn(self, prompt: BenchPrompt, tokens: int) -> None:
        """Takes the engine's count of a prompt's tokens as a measure for further ones of its kind."""
        if tokens > 0:
            self._chars[prompt.kind] += len(prompt.text)
            self._counted[prompt.kind] += tokens

    def _excerpts(self, kind: Content, length: int) -> str:
        source = _code() if kind in _FROM_CODE else _prose()
        found: list[str] = []
        so_far = 0
        while so_far < length:
            found.append(self._random.choice(source))
            so_far += len(found[-1]) + 2
        return "\n\n".join(found)[:length]


@cache
def _code() -> Sequence[str]:
    return _cut("\n\n".join(inspect.getsource(import_module(name)) for name in _MODULES))


@cache
def _prose() -> Sequence[str]:
    """The language reference as `help()` prints it."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return _cut("\n\n".join(topics[name] for name in sorted(topics)))


def _cut(text: str) -> Sequence[str]:
    """Excerpts of whole lines."""
    found: list[list[str]] = [[]]
    so_far = 0
    for line in text.splitlines():
        if so_far >= EXCERPT:
            found.append([])
            so_far = 0
        found[-1].append(line)
        so_far += len(line) + 1
    return ["\n".join(lines) for lines in found]
