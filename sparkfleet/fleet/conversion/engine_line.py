"""Finds an engine's command among the words of a launch line, and splits its arguments into flags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from sparkfleet.specs.deployment import PlannedEngine

_MODULES: dict[str, PlannedEngine] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
    "sglang.srt.entrypoints.http_server": "sglang",
}
_IMAGES: dict[str, PlannedEngine] = {
    "vllm-openai": "vllm",
    "vllm-openai-cpu": "vllm",
    "llama.cpp": "llama.cpp",
}
"""Last part of the names of images whose entrypoint is the engine."""
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_ONLY_NAMED = frozenset(
    {"echo", "printf", "pkill", "pgrep", "grep", "which", "alias", "command", "man", "pip", "pip3"}
)
"""Commands among whose words a program is not run."""


class EngineFlag(NamedTuple):
    """One flag of an engine, with the words that follow it."""

    name: str
    """As it is written."""
    values: tuple[str, ...]
    joined: bool
    """True for `--flag=value`."""

    @property
    def plain(self) -> str:
        """The name with dashes for underscores, as engines' parsers compare it."""
        return self.name.replace("_", "-")

    @property
    def value(self) -> str:
        """The values with blanks between them."""
        return " ".join(self.values)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line."""
        if self.joined:
            return (f"{self.name}={self.values[0]}", *self.values[1:])
        return (self.name, *self.values)


class EngineLine(NamedTuple):
    """The command of an engine."""

    engine: PlannedEngine
    positional: tuple[str, ...]
    """Words before the first flag: the model."""
    flags: tuple[EngineFlag, ...]

    def first(self, *names: str) -> str | None:
        """Value of the first of these flags that is given; None if none is."""
        return next((flag.value for flag in self.flags if flag.plain in names), None)


def engine_line(words: Sequence[str], image: str = "") -> EngineLine | None:
    """The engine that a command starts; None if it starts none.

    Args:
        words: of the command; in a container those behind the image.
        image: of the container, whose entrypoint may be the engine.
    """
    if words and PurePosixPath(words[0]).name in _ONLY_NAMED:
        return None
    for at in range(len(words)):
        if (found := _program(words, at)) is not None:
            engine, count = found
            return _line(engine, words[at + count :])
    own = _IMAGES.get(PurePosixPath(image.partition("@")[0].partition(":")[0]).name) if image else None
    is_for_it = not words or words[0].startswith("-") or "/" in words[0]
    return _line(own, words) if own is not None and is_for_it else None


def _program(words: Sequence[str], at: int) -> tuple[PlannedEngine, int] | None:
    """The engine whose program is at a place, and the number of words that name it."""
    name, following = PurePosixPath(words[at]).name, words[at + 1] if at + 1 < len(words) else ""
    if name in ("vllm", "sglang") and following == "serve":
        return ("vllm" if name == "vllm" else "sglang"), 2
    if words[at] in _MODULES and at > 0 and words[at - 1] == "-m":
        return _MODULES[words[at]], 2 if following == "serve" else 1
    if name == "trtllm-serve":
        return "trtllm", 2 if following == "serve" else 1
    if name in ("llama-server", "llama.cpp-server"):
        return "llama.cpp", 1
    return None


def _line(engine: PlannedEngine, words: Sequence[str]) -> EngineLine:
    positional: list[str] = []
    flags: list[EngineFlag] = []
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            name, equals, value = word.partition("=")
            flags.append(EngineFlag(name, (value,) if equals else (), bool(equals)))
        elif flags:
            last = flags.pop()
            flags.append(last._replace(values=(*last.values, word)))
        else:
            positional.append(word)
    return EngineLine(engine, tuple(positional), tuple(flags))
