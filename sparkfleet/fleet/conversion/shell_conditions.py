"""Follows the conditions of a shell script as far as its variables decide them: `if`, `case`, `&&`, `||` and groups. Pure.

A loop is read as if its body ran once, and a branch that nothing decides as if it ran, too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from sparkfleet.fleet.conversion.shell_command import UNKNOWN, is_unset

TESTS = frozenset({"[", "[[", "test", "(("})
"""Commands that only compare values."""
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_ARITHMETIC = re.compile(r"\s*(-?\d+)\s*([=!]=|[<>]=?)\s*(-?\d+)\s*", re.ASCII)


def truth_of(words: Sequence[str], undecided: bool | None = None) -> bool | None:
    """The result of a test; None if its values do not decide it, or for a command that is none.

    Args:
        words: of the command.
        undecided: result of a test whose values are not known. A variable that nothing sets is empty (`-z`), as in a
            shell, unless this is True.
    """
    if not words or words[0] in ("true", ":", "false"):
        return words[0] != "false" if words else None
    if words[0] not in TESTS and words[-1] != "]]":
        return None
    if words[0] == "((":
        found = _ARITHMETIC.fullmatch(" ".join(words[1:]))
        result = None if found is None else _COMPARED[found[2]](int(found[1]), int(found[3]))
    else:
        inner = words[words[0] in TESTS : len(words) - (words[-1] in ("]", "]]"))]
        result = _compared(inner, undecided is True)
    return undecided if result is None else result


def _compared(words: Sequence[str], is_set: bool) -> bool | None:
    """The result of a comparison. `is_set`: variables that nothing sets have a value."""
    if words[:1] == ["!"]:
        result = _compared(words[1:], not is_set)
        return None if result is None else not result
    if len(words) == 1 or (len(words) == 2 and words[0] in ("-n", "-z")):
        if is_unset(words[-1]):
            return is_set if words[0] != "-z" else True
        return None if UNKNOWN in words[-1] else (words[-1] == "") == (words[0] == "-z")
    is_known = len(words) == 3 and not any(UNKNOWN in word for word in words)
    return _of_two(*words) if is_known else None


def _of_two(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "==", "!="):
        return fnmatchcase(left, right) == (sign != "!=")
    are_numbers = all(re.fullmatch(r"-?\d+", one, re.ASCII) for one in (left, right))
    compare = _COMPARED.get(sign) if sign.startswith("-") and are_numbers else None
    return None if compare is None else compare(int(left), int(right))


_Kind = Literal["if", "case", "loop", "group", "brackets"]


@dataclass
class _Compound:
    """An `if`, a `case`, a loop or a group that has begun."""

    kind: _Kind
    dead: bool
    """It does not run at all."""
    live: bool | None = True
    """The branch at hand runs; None: not known."""
    taken: bool | None = False
    """A branch before it ran; None: not known."""
    status: bool | None = None
    """Of the command before it."""
    subject: str = ""
    at_pattern: bool = False
    patterns: tuple[str, ...] = ()
    branches: int = 0


class ControlFlow:
    """The place in a script's conditions.

    Args:
        undecided: see `truth_of`.
    """

    def __init__(self, undecided: bool | None = None) -> None:
        self._undecided = undecided
        self._open: list[_Compound] = []
        self._status: bool | None = True
        self._joined = ""
        """`&&` or `||` in front of the command at hand."""
        self._negated = False

    @property
    def runs(self) -> bool:
        """False for a command that does not run."""
        if any(one.dead or one.live is False for one in self._open):
            return False
        return self._status is not (self._joined == "||") if self._joined else True

    @property
    def is_certain(self) -> bool:
        """True for a command that runs in any case."""
        return all(one.live is not None for one in self._open) and not (self._joined and self._status is None)

    def begin(self, words: Sequence[str], separator: str) -> list[str]:
        """Follows the reserved words in front of a command, or a pattern of `case`. Returns the command behind them."""
        rest = list(words)
        while rest and not self._is_at_pattern:
            if rest[0] == "!":
                self._negated = not self._negated
            elif rest[0] in ("case", "for", "select", "function"):
                rest = self._opened(rest)
                continue
            elif (follow := _RESERVED.get(rest[0])) is not None:
                follow(self)
            else:
                break
            del rest[0]
        if self._is_at_pattern:
            self._pattern(rest, separator)
            return []
        if not rest and separator in ("&&", "||"):
            self._joined = separator
        return rest

    def end(self, words: Sequence[str], separator: str, *, is_assignment: bool = False) -> None:
        """Follows the end of a command that `begin` returned."""
        if separator == "|":  # the commands of a pipe run together
            return
        if self.runs:
            result = True if is_assignment else truth_of(words, self._undecided)
            result = not result if self._negated and result is not None else result
            if self._joined and self._status is None and result is not (self._joined == "||"):
                result = None
            self._status = result
        self._negated = False
        self._joined = separator if separator in ("&&", "||") else ""

    def next_branch(self) -> None:
        """Follows `;;`."""
        if self._open and self._open[-1].kind == "case":
            self._open[-1].at_pattern = True
            self._joined = ""

    def open_bracket(self) -> None:
        """Follows a `(` that begins a group; in front of a pattern it means nothing."""
        if not self._is_at_pattern:
            self._push("brackets")

    def close_bracket(self) -> None:
        """Follows a `)`."""
        self._pop("brackets")

    @property
    def _is_at_pattern(self) -> bool:
        return bool(self._open) and self._open[-1].at_pattern

    def _opened(self, words: list[str]) -> list[str]:
        """Follows the head of a `case`, a loop or a function. Returns the patterns behind `in`."""
        if words[0] == "function":
            if words[-1] == "{":
                self._push("group")
            return []
        if words[0] != "case":
            self._push("loop", None)
            return []
        self._push("case", subject=words[1] if len(words) > 1 else "")
        self._open[-1].at_pattern = True
        return words[3:]

    def _pattern(self, words: Sequence[str], separator: str) -> None:
        top = self._open[-1]
        if words[:1] == ["esac"]:
            self._pop("case")
            self._joined = separator if separator in ("&&", "||") else ""
            return
        top.patterns += tuple(words)
        if separator == ")" and top.patterns:
            self._take(self._matching(top))
            top.at_pattern, top.patterns = False, ()
            top.branches += 1

    def _matching(self, top: _Compound) -> bool | None:
        if UNKNOWN not in top.subject:
            if any(fnmatchcase(top.subject, one) for one in top.patterns if UNKNOWN not in one):
                return True
            return None if any(UNKNOWN in one for one in top.patterns) else False
        if self._undecided is False:
            return None if top.branches else False
        return self._undecided

    def _push(self, kind: _Kind, live: bool | None = True, subject: str = "") -> None:
        dead, is_certain = not self.runs, not self._joined or self._status is not None
        self._open.append(
            _Compound(kind, dead, live if is_certain else None, status=self._status, subject=subject)
        )
        self._joined = ""

    def _pop(self, kind: _Kind) -> None:
        if self._open and self._open[-1].kind == kind:
            closed = self._open.pop()
            is_known = kind in ("group", "brackets") and closed.live is True
            self._status = closed.status if closed.dead else self._status if is_known else None
        self._joined = ""

    def _take(self, condition: bool | None) -> None:
        """Begins a branch that runs if its condition holds and no branch before it has run."""
        top = self._open[-1]
        top.live = (
            False if top.taken is True or condition is False else condition if top.taken is False else None
        )
        if condition is not False:
            top.taken = True if condition is True or top.taken is True else None
        self._joined = ""

    def _then(self) -> None:
        if self._open and self._open[-1].kind == "if":
            self._take(self._status)

    def _elif(self) -> None:
        """Follows `elif`, whose condition is evaluated if no branch before it has surely run."""
        if self._open and self._open[-1].kind == "if":
            self._open[-1].live = self._open[-1].taken is not True
            self._joined = ""

    def _else(self) -> None:
        if self._open and self._open[-1].kind == "if":
            top = self._open[-1]
            top.live = None if top.taken is None else not top.taken
            self._joined = ""

    def _do(self) -> None:
        self._joined = ""


_RESERVED: Mapping[str, Callable[[ControlFlow], None]] = {
    "if": lambda flow: flow._push("if"),
    "then": lambda flow: flow._then(),
    "elif": lambda flow: flow._elif(),
    "else": lambda flow: flow._else(),
    "fi": lambda flow: flow._pop("if"),
    "while": lambda flow: flow._push("loop", None),
    "until": lambda flow: flow._push("loop", None),
    "do": lambda flow: flow._do(),
    "done": lambda flow: flow._pop("loop"),
    "esac": lambda flow: flow._pop("case"),
    "{": lambda flow: flow._push("group"),
    "}": lambda flow: flow._pop("group"),
}
