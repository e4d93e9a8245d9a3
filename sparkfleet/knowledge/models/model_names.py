"""Names of models: without owner, format and version of their post-training, and globs on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cache, lru_cache

_FORMAT_WORDS = (
    r"ud|gguf|nvfp4|mxfp[48]|fp[48]|bf16|fp16|int4|int8\w*|gptq|awq|autoround|exl3|tr3|i?q\d\w*|w[48]a\d+|[\d.]+bpw|[48]bit"
    r"|it|instruct|mtp|sm121|static|pertensor"
)


_JOINS = (
    (r"(^|[-_/])qwen-(?=[0-9])", r"\1qwen"),
    (r"(gemma|glm|llama|ministral|nemotron|step|gpt)(?=[0-9.]|oss)", r"\1-"),
    (r"([0-9])b-?a([0-9])", r"\1b-a\2"),
)
"""Hyphens that are often left out or replaced: "Qwen 3.6 35B A3B", "Gemma4-26B"."""


@cache
def plain(name: str) -> str:
    """A model's name without owner, format and version of its post-training; siblings share it."""
    owner, slash, rest = name.strip().rpartition("/")
    text = (rest if slash and " " not in owner else name).lower().strip()
    text = re.sub(r"\.gguf$|\(.*", "", text)
    text = re.sub(r"\s+|:", "-", text)
    for spelling, joined in _JOINS:
        text = re.sub(spelling, joined, text)
    text = re.sub(rf"[-_ ]({_FORMAT_WORDS})\b.*", "", text)
    return text.strip(" -_")


def matches(model: str, globs: Iterable[str]) -> bool:
    """True if a Hub id is like one of the globs, letter case aside."""
    return _any_of(tuple(globs)).fullmatch(model.lower()) is not None


@lru_cache(maxsize=4096)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all of the globs, since a name is compared with those of every entry; none matches nothing."""
    return re.compile("|".join(translate(one.lower()) for one in patterns) or "(?!)")


@lru_cache(maxsize=1024)
def glob(pattern: str) -> re.Pattern[str]:
    """The regular expression of a glob, for text in small letters."""
    return re.compile(translate(pattern.lower()))
