"""Flags of engines, release by release: `engine_flags/<engine>-<version>.json`, each read from that release's own parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sparkfleet.knowledge.versions import is_within
from sparkfleet.values import Value

FILES = Path(__file__).parent / "engine_flags"
ENGINE_LABELS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "llama.cpp": "llama.cpp"}
SIMILAR = 0.75
"""Least similarity of two names (`difflib`) of which one may be meant for the other."""


class FlagFault(Value):
    """A flag that no known release of an engine has, or a value that its parser refuses."""

    flag: str
    value: str = ""
    """The refused value; "" if the flag itself is unknown."""
    near: tuple[str, ...]
    """The known flag with the most similar name, or the values that come closest; all of them if none is similar."""
    certain: bool
    """True if the flags of exactly this release are known."""
    releases: tuple[str, ...]
    """Releases whose flags were searched."""

    def words(self, engine: str, version: str) -> str:
        """The finding as a sentence without its full stop."""
        name = ENGINE_LABELS.get(engine, engine)
        if self.value:
            return f"{name} {version} refuses {self.flag}={self.value}; it takes {' or '.join(self.near)}"
        hint = f"; the nearest is {self.near[0]}" if self.near else ""
        if self.certain:
            return f"{name} {version} has no flag {self.flag}{hint}"
        searched = " and ".join(self.releases)
        return f"{self.flag} is no flag of {name} {searched}, the releases whose flags are known{hint}"


class _Table(NamedTuple):
    """Flags of a release, with dashes, and the values of those that take only listed ones."""

    flags: frozenset[str]
    choices: Mapping[str, tuple[str, ...]]


def engines_with(flag: str) -> tuple[str, ...]:
    """Engines of which a known release has this flag, in full; of a key (`--compilation-config.mode`) the flag before it."""
    name = flag.partition(".")[0]
    return tuple(
        engine for engine in ENGINE_LABELS if any(name in one.flags for one in _releases(engine).values())
    )


def nearest_flag(flag: str) -> str:
    """The flag of any known release of any engine with the most similar name; "" if none is similar."""
    name = flag.replace("_", "-").partition(".")[0]
    flags = {one for engine in ENGINE_LABELS for table in _releases(engine).values() for one in table.flags}
    return next(iter(get_close_matches(name, flags, n=1, cutoff=SIMILAR)), "")


def may_have_others(engine: str, version: str) -> bool:
    """True if a version may have flags that no known release has: a later one, or one that cannot be ordered."""
    newest = list(_releases(engine))[-1:]
    series = ".9999" if newest and "." in newest[0] else ""  # builds of llama.cpp have no patches
    return not newest or not is_within(version, f"<={newest[0]}{series}")


def are_known(engine: str, version: str) -> bool:
    """True if the flags of exactly this release were read."""
    return _release(engine, version) in _releases(engine)


def flag_faults(engine: str, version: str, flags: Mapping[str, str]) -> tuple[FlagFault, ...]:
    """Flags that a release does not have, or the known ones next to it if that one is not known, and values that it refuses.

    A flag may be shortened, as the engines' parsers allow, have underscores, and name one key of a JSON value after a dot
    (`--compilation-config.mode`, vLLM). Short flags (`-tp`) are not judged, nor values for a release that is not known.

    Args:
        engine: of `ENGINE_LABELS`; no other engine's flags are known.
        version: its version; "" if it is not known.
        flags: values by flag, as written; several values of one flag with blanks between them.
    """
    exact = _releases(engine).get(_release(engine, version))
    near_by = _next_to(engine, version)
    releases = tuple(near_by)
    searched = exact.flags if exact else frozenset().union(*(one.flags for one in near_by.values()))
    if not searched:
        return ()
    found: list[FlagFault] = []
    for flag, value in flags.items():
        name = flag.replace("_", "-").partition(".")[0]
        if not name.startswith("--"):
            continue
        meant = {name} & searched or {one for one in searched if one.startswith(name)}
        if not meant:
            near = tuple(get_close_matches(name, searched, n=1, cutoff=SIMILAR))
            found.append(FlagFault(flag=flag, near=near, certain=exact is not None, releases=releases))
        elif exact and len(meant) == 1 and flag.replace("_", "-") == name:
            choices = exact.choices.get(meant.pop(), ())
            found += (
                FlagFault(flag=flag, value=one, near=near, certain=True, releases=releases)
                for one, near in _refused(value, choices)
            )
    return tuple(found)


def _next_to(engine: str, version: str) -> dict[str, _Table]:
    """The newest known release up to a version and the oldest after it; of a version without an order the two newest."""
    known = _releases(engine)
    if len(known) < 2:
        return known
    older = [release for release in known if is_within(version, f">={release}")]
    newer = [release for release in known if is_within(version, f"<={release}")]
    near_by = dict.fromkeys([*older[-1:], *newer[:1]] or [*known][-2:])
    return {release: known[release] for release in near_by}


def _refused(value: str, choices: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Values that are none of the choices, each with those that come closest."""
    # vLLM reads the names of backends without regard to case, and dashes as underscores
    plain = {_plain(choice) for choice in choices}
    for one in value.split() if choices else ():
        if _plain(one) not in plain:
            yield one, tuple(get_close_matches(one, choices)) or choices


def _plain(value: str) -> str:
    return value.lower().replace("-", "_")


@cache
def _releases(engine: str) -> dict[str, _Table]:
    """Flags by release, oldest first."""
    read = [json.loads(file.read_text()) for file in sorted(FILES.glob(f"{engine}-*.json"))]
    return {_release(engine, one["version"]): _table(one["options"], one["choices"]) for one in read}


def _table(options: list[str], choices: dict[str, list[str]]) -> _Table:
    return _Table(
        frozenset(flag.replace("_", "-") for flag in options),
        {flag.replace("_", "-"): tuple(values) for flag, values in choices.items()},
    )


def _release(engine: str, version: str) -> str:
    """The part of a version that decides the flags: `0.32` of vLLM's 0.32.0+cpu; SGLang adds some with every patch."""
    plain = version.partition("+")[0].removeprefix("v")
    if engine == "llama.cpp":
        return plain.removeprefix("b").partition(".")[0]
    return ".".join(plain.split(".")[:2]) if engine == "vllm" else plain
