"""Flags of engines, release by release: `engine_flags/<engine>-<version>.json`, each read from that release's own parser."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from sparkfleet.values import Value

FILES = Path(__file__).parent / "engine_flags"
ENGINE_LABELS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


class UnknownFlag(Value):
    """A flag that no known release of an engine has."""

    flag: str
    near: str
    """The known flag with the most similar name; "" if none is similar."""
    certain: bool
    """True if the flags of exactly this release are known."""
    releases: tuple[str, ...]
    """Releases whose flags were searched."""

    def words(self, engine: str, version: str) -> str:
        """The finding as a sentence without its full stop."""
        name = ENGINE_LABELS.get(engine, engine)
        hint = f"; the nearest is {self.near}" if self.near else ""
        if self.certain:
            return f"{name} {version} has no flag {self.flag}{hint}"
        searched = " and ".join(self.releases)
        return f"{self.flag} is no flag of {name} {searched}, the releases whose flags are known{hint}"


def unknown_flags(engine: str, version: str, flags: Iterable[str]) -> tuple[UnknownFlag, ...]:
    """Flags that a release does not have, or no known release if that one is not known.

    A flag may be shortened, as the engines' parsers allow, have underscores, and name one key of a JSON value after a dot
    (`--compilation-config.mode`, vLLM). Short flags (`-tp`) are not judged.

    Args:
        engine: `vllm`, `sglang` or `trtllm`; no other engine's flags are known.
        version: its version; "" if it is not known.
        flags: names, as written.
    """
    known = _releases(engine)
    exact = known.get(_release(engine, version))
    searched = exact if exact is not None else frozenset().union(*known.values())
    if not searched:
        return ()
    found = []
    for flag in flags:
        name = flag.replace("_", "-").partition(".")[0]
        if not name.startswith("--") or any(one.startswith(name) for one in searched):
            continue
        near = get_close_matches(name, searched, n=1, cutoff=0.75)
        found.append(
            UnknownFlag(
                flag=flag,
                near=near[0] if near else "",
                certain=exact is not None,
                releases=tuple(known),
            )
        )
    return tuple(found)


@cache
def _releases(engine: str) -> dict[str, frozenset[str]]:
    """Flags by release, with dashes, oldest first."""
    files = sorted(FILES.glob(f"{engine}-*.json"))
    read = [json.loads(file.read_text()) for file in files]
    return {
        _release(engine, one["version"]): frozenset(flag.replace("_", "-") for flag in one["options"])
        for one in read
    }


def _release(engine: str, version: str) -> str:
    """The part of a version that decides the flags: `0.32` of vLLM's 0.32.0+cpu; SGLang adds some with every patch."""
    plain = version.partition("+")[0].removeprefix("v")
    return ".".join(plain.split(".")[:2]) if engine == "vllm" else plain
