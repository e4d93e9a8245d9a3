"""Versions as engines, images, kernels and drivers print them, and ranges over them.

    0.19.0   0.32.0+cpu   v0.27.1-aarch64   0.5.12.post1   1.3.0rc12   26.04-py3
    580.95.05   6.17.0-1014-nvidia   2026-04-02   0.5.12 re-tag   b11434

A version that cannot be ordered is never guessed; a range answers `Truth.UNKNOWN`: for "nightly", for the "0.1.dev20003"
of a fork without tags, and for a snapshot whose name is not above the range: vLLM's main called itself 0.23.1rc1.dev1133 two
days after 0.25.0 was out, so a snapshot is at least the version in its name, and maybe a much later one.

A range is a comma list. Comparisons (`>=0.24,<0.28,!=0.26.0`) all have to hold; of bare versions and `A-B` spans
(`0.19,0.21-0.23`) one has to. A bound counts as the whole series it names: 0.19.1 is within `<=0.19`, and 0.27.1 within
`0.24-0.27`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class Truth(Enum):
    """An answer that may be missing."""

    NO = "no"
    UNKNOWN = "unknown"
    YES = "yes"

    @staticmethod
    def of(value: bool) -> Truth:
        """YES or NO."""
        return _YES if value else _NO

    @property
    def opposite(self) -> Truth:
        """YES for NO and NO for YES; unknown stays unknown."""
        return _OPPOSITES[self]


# Looking up a member of an enum costs more than most conditions.
_YES, _NO = Truth.YES, Truth.NO

_OPPOSITES = {Truth.YES: Truth.NO, Truth.NO: Truth.YES, Truth.UNKNOWN: Truth.UNKNOWN}


def every(answers: Iterable[Truth]) -> Truth:
    """NO as soon as one is NO; UNKNOWN if one of the others is; YES for none at all."""
    result = Truth.YES
    for answer in answers:
        if answer is Truth.NO:
            return Truth.NO
        if answer is Truth.UNKNOWN:
            result = Truth.UNKNOWN
    return result


def some(answers: Iterable[Truth]) -> Truth:
    """YES as soon as one is YES; UNKNOWN if one of the others is; NO for none at all."""
    result = Truth.NO
    for answer in answers:
        if answer is Truth.YES:
            return Truth.YES
        if answer is Truth.UNKNOWN:
            result = Truth.UNKNOWN
    return result


FINAL = ("", 0)

_VERSION = re.compile(
    r"""v?(?P<release>\d+(?:\.\d+)*)
    (?:-(?P<build>\d+))?                                  # kernel packages: 6.17.0-1014-nvidia
    (?:[.-]?(?P<pre>alpha|beta|rc|a|b)[.-]?(?P<pre_number>\d+))?
    (?:[.-]?post(?P<post>\d+))?
    (?:[.-]?dev(?P<dev>\d+))?
    (?:\+[a-z0-9.]+)?                                     # +cpu, +gad848fc41.d20260815
    (?:[-_][a-z0-9._-]+)?                                 # -py3, -aarch64-cu129-ubuntu2404, -nvidia
    (?:\s+(?P<label>\S.*))?                               # "re-tag": the listed name of this build
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BUILD = re.compile(r"b?(\d{4,5})(?:\.0\.0)?(?:\+cpu)?", re.IGNORECASE)
"""A build of llama.cpp, which numbers its commits: `b11434` as it tags them, `11434` as `llama-server --version` prints it,
`11434.0.0` as packages of it have it; `b11434+cpu` is a build without a GPU's code."""
_COMMIT = re.compile(r"\+g([0-9a-f]{7,40})", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_SPAN = re.compile(r"v?(\d+(?:\.\d+)*(?:rc\d+)?)\s*-\s*v?(\d+(?:\.\d+)*(?:rc\d+)?)", re.IGNORECASE)
_OPERATOR = re.compile(r"(>=|<=|==|!=|>|<)?\s*(\S.*?)\s*")
_PRE_NAMES = {"a": "a", "alpha": "a", "b": "b", "beta": "b", "rc": "rc"}
_SCM_DEV = 1000
"""setuptools-scm writes 0.1.devN, N the number of all commits, if a fork has no tags: nothing to compare."""
_LARGEST_MAJOR = 9999


@dataclass(frozen=True, slots=True)
class Version:
    """A version that can be ordered."""

    release: tuple[int, ...]
    build: int | None = None
    pre: tuple[str, int] = FINAL
    """("rc", 12) or FINAL."""
    post: int = 0
    snapshot: bool = False
    """Built between two releases (`.devN`)."""
    label: str = ""

    def series(self, length: int) -> tuple[int, ...]:
        """The first `length` parts of the release, zeros if there are none."""
        return (self.release + (0,) * length)[:length]

    def opens(self, length: int) -> bool:
        """True if this is the first release of its series of `length` parts: 0.24.0 of 0.24."""
        return not any(self.release[length:])


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version | None:
    """The version in `text`; None if it contains none that can be ordered."""
    stripped = text.strip()
    if date := _DATE.fullmatch(stripped):
        return Version(tuple(int(part) for part in date.groups()))
    if build := _BUILD.fullmatch(stripped):
        return Version((int(build[1]),))
    match = _VERSION.fullmatch(stripped)
    if match is None:
        return None
    release = tuple(int(part) for part in match["release"].split("."))
    if release[0] > _LARGEST_MAJOR or (match["dev"] and release == (0, 1) and int(match["dev"]) > _SCM_DEV):
        return None
    return Version(
        release=release,
        build=int(match["build"]) if match["build"] else None,
        pre=(_PRE_NAMES[match["pre"].lower()], int(match["pre_number"])) if match["pre"] else FINAL,
        post=int(match["post"] or 0),
        snapshot=match["dev"] is not None,
        label=(match["label"] or "").strip().lower(),
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """One item of a range: an operator and its operand. `version` is None for a literal."""

    operator: str
    text: str
    version: Version | None

    def holds(self, text: str, version: Version | None) -> Truth:
        """YES if the version (`text` as printed, `version` as parsed) satisfies this."""
        if self.version is None:
            return _literal(self.text, text, version)
        if version is None:
            return Truth.UNKNOWN
        if self.version.label and version.label != self.version.label and self.operator == "==":
            return _other_label(version, self.version)
        side = _side(version, self.version)
        if side is None or (version.snapshot and side <= 0):
            return Truth.UNKNOWN
        return _decide(self.operator, side, _on_edge(version, self.version))


def _literal(wanted: str, text: str, version: Version | None) -> Truth:
    if wanted.lower() == text.strip().lower():
        return Truth.YES
    commits = [found[1].lower() for one in (wanted, text) if (found := _COMMIT.search(one))]
    if len(commits) == 2 and not commits[0].startswith(commits[1]) and not commits[1].startswith(commits[0]):
        return Truth.NO
    return Truth.UNKNOWN if version is None or version.snapshot else Truth.NO


def _other_label(version: Version, wanted: Version) -> Truth:
    """UNKNOWN for a version without a label: it may be the labelled build or another one."""
    if version.label or _side(version, wanted) != 0:
        return Truth.NO
    return Truth.UNKNOWN


def _side(version: Version, bound: Version) -> int | None:
    """-1, 0 or 1: below, in or above the series that `bound` names; None if the build decides and is not known."""
    length = len(bound.release)
    if (mine := version.series(length)) != bound.release:
        return 1 if mine > bound.release else -1
    if bound.build is not None:
        return None if version.build is None else _sign(version.build - bound.build)
    if bound.pre == FINAL and not bound.post:
        return 0
    if not version.opens(length):
        return 1
    return (_rank(version) > _rank(bound)) - (_rank(version) < _rank(bound))


def _rank(version: Version) -> tuple[bool, str, int, int]:
    """Order of the builds of one release: a, b, rc, final, post."""
    return (version.pre == FINAL, *version.pre, version.post)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _on_edge(version: Version, bound: Version) -> bool:
    """True for a pre-release of the bound's own first release: if it is in the series is not known."""
    plain = bound.pre == FINAL and not bound.post
    return plain and version.pre != FINAL and version.opens(len(bound.release))


def _decide(operator: str, side: int, edge: bool) -> Truth:
    if side == 0 and edge and operator in {">=", "<", "==", "!="}:
        return Truth.UNKNOWN
    return Truth.of(
        {
            ">=": side >= 0,
            "<=": side <= 0,
            ">": side > 0,
            "<": side < 0,
            "==": side == 0,
            "!=": side != 0,
        }[operator]
    )


@dataclass(frozen=True, slots=True)
class Range:
    """A set of versions."""

    text: str
    comparisons: tuple[Bound, ...]
    spans: tuple[tuple[Bound, ...], ...]

    def contains(self, text: str) -> Truth:
        """YES if the version that was printed as `text` is in the range."""
        version = parse_version(text)
        found = every(bound.holds(text, version) for bound in self.comparisons)
        if not self.spans:
            return found
        inside = some(every(bound.holds(text, version) for bound in span) for span in self.spans)
        return every((found, inside))


@lru_cache(maxsize=1024)
def parse_range(text: str) -> Range:
    """The range in `text`.

    Raises:
        ValueError: it is empty, or compares with something that is not a version.
    """
    comparisons: list[Bound] = []
    spans: list[tuple[Bound, ...]] = []
    for item in text.split(","):
        bounds = _bounds(item.strip())
        if len(bounds) == 1 and bounds[0].operator != "==":
            comparisons += bounds
        else:
            spans.append(bounds)
    return Range(text, tuple(comparisons), tuple(spans))


def is_within(version: str, wanted: str) -> bool:
    """True if a version is known to be in the range `wanted`."""
    return parse_range(wanted).contains(version) is Truth.YES


def _bounds(item: str) -> tuple[Bound, ...]:
    # A kernel, 6.17.0-1014, has dots on the left side only; a span has them on both or on none.
    span = _SPAN.fullmatch(item)
    if span and ("." in span[1]) == ("." in span[2]):
        return (_bound(">=", span[1]), _bound("<=", span[2]))
    match = _OPERATOR.fullmatch(item)
    if match is None:
        raise ValueError(f'expected a version or a range such as ">=0.24,<0.28" or "0.24-0.27", got "{item}"')
    return (_bound(match[1] or "==", match[2]),)


def _bound(operator: str, text: str) -> Bound:
    version = parse_version(text)
    if version is not None and not version.snapshot:
        return Bound(operator, text, version)
    if operator != "==":
        raise ValueError(f'"{text}" is not a version that {operator} can compare')
    return Bound(operator, text, None)
