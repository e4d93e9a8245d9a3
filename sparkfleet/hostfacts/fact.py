"""Contract of a fact: a command and the parser of its output, with the helpers that parsers share.

Output of a node is untrusted input: parsers run in linear time, read a bounded part of it, and either return a value or
raise `FactError`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

from sparkfleet.errors import FactError
from sparkfleet.specs.fields import escape, quote

T_co = TypeVar("T_co", covariant=True)
J = TypeVar("J", list[object], dict[str, object])


MOST_CHARACTERS = 4 << 20
"""Limit of one answer. The longest on a Spark, those of `ss` and `docker info`, have some tens of thousands."""

LONGEST_TEXT = 300

_ABSENT = frozenset({"", "n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "unknown!"})
_NUMBER = re.compile(r"\s*(-?\d{1,18}(?:\.\d{1,9})?)(?:\s*[A-Za-z%/]{0,8})?\s*", re.ASCII)


class Fact(Protocol[T_co]):
    """One fact of a node: the command that reads it, and the parser of its output."""

    argv: ClassVar[tuple[str, ...]]
    fine: ClassVar[tuple[int, ...]] = (0,)
    """Exit codes after which stdout is parsed; `grep` exits with 2 if one of several files is missing."""

    @staticmethod
    def parse(output: str) -> T_co:
        """The value in the output of `argv`. Raises FactError if the output does not contain it."""
        ...

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> T_co:
        """The value in a whole answer. Raises FactError if the command failed or its output does not contain it."""
        if exit_code not in cls.fine:
            raise failed(cls.argv, exit_code, stderr)
        if len(stdout) > MOST_CHARACTERS:
            raise too_long(cls.argv, len(stdout))
        return cls.parse(stdout)


def failed(argv: Sequence[str], exit_code: int, stderr: str) -> FactError:
    """Error: the command failed on the node."""
    why = text(" ".join(stderr[:2000].split())) or "no answer"
    return FactError(
        f"`{argv[0]}` failed with exit code {exit_code}: {why}",
        means="This fact is not known of this node.",
        do=f"Run it by hand on the node: {text(' '.join(argv))}",
    )


def too_long(argv: Sequence[str], length: int) -> FactError:
    """Error: the output is longer than any that this command prints."""
    return FactError(
        f"`{argv[0]}` printed {length} characters; at most {MOST_CHARACTERS} are read.",
        means="It is not the program that is expected under this name.",
        do=f"Check which program it is on the node: type -a {text(argv[0])}",
    )


def unexpected_output(what: str, output: str) -> FactError:
    """Error: the output cannot be parsed. `what` is a noun phrase, such as "the listening sockets"."""
    return FactError(
        f"Reading {what}: the node printed {quote(output)}.",
        means="This is not the expected format, so the fact counts as unknown.",
        do="Run the command by hand on the node; a shell profile that prints text is a common cause.",
    )


def text(value: object, most: int = LONGEST_TEXT) -> str:
    """`value` as one line of at most `most` characters, without any that a terminal would act on."""
    plain = value[: most + 1] if isinstance(value, str) else f"{value}"[: most + 1]
    return escape(plain if len(plain) <= most else plain[: most - 1] + "…")


def present(value: str) -> str | None:
    """A field of `nvidia-smi` or `ethtool`; None if it is empty, `[N/A]`, `[Not Supported]` or the like."""
    stripped = value.strip()
    return None if stripped.lower() in _ABSENT else text(stripped)


def number(value: str) -> float | None:
    """A field as a number, without its unit; None if it contains no number."""
    found = _NUMBER.fullmatch(value)
    return float(found[1]) if found else None


def by_file(output: str) -> Mapping[str, list[str]]:
    """Parses the output of `grep -H ""`: the lines of each file by its path. Paths with a colon are never requested."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in output.splitlines():
        path, colon, content = line.partition(":")
        if colon and path.startswith("/"):
            found[path].append(content)
    return found


def settings(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`NAME="value"` lines, in order; if a name occurs again, the last one counts."""
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            yield text(name.strip()), text(value.strip().strip("\"'"))


def json_of(output: str, kind: type[J], what: str) -> J:
    """`output` as a JSON list or object.

    Raises:
        FactError: it is neither, or is nested too deeply.
    """
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise unexpected_output(what, output)
    return value


def whole(value: object) -> int | None:
    """A JSON number as a size or a count; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 63 else None
