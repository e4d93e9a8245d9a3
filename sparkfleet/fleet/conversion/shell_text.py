"""Splits a shell script into its commands, with the variables that it sets: nothing of it is run, and no file is read.

It reads the part of POSIX shells and bash that launch scripts are written in: quotes, comments, continued lines, variables
with defaults, arrays, redirections, here-documents, and conditions (`shell_conditions`). A loop is read as if it ran once.
(`bashlex`, the library for it, has a licence that this project's does not allow to be shipped with.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, takewhile

from sparkfleet.fleet.conversion.shell_command import (
    NOTHING_ASSUMED,
    UNKNOWN,
    Assumptions,
    ShellCommand,
    is_unset,
)
from sparkfleet.fleet.conversion.shell_conditions import TESTS, ControlFlow

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL | re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*#]+)(\[[@*]\])?(?::?([-=?+])(.*))?", re.DOTALL | re.ASCII)
_HERE = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2", re.ASCII)
_IN_ARITHMETIC = re.compile(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)", re.ASCII)
"""A variable in `((…))`."""
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_ENDS = frozenset(";&|()\n")


def commands_of(
    text: str, variables: Mapping[str, str] | None = None, assumed: Assumptions = NOTHING_ASSUMED
) -> tuple[ShellCommand, ...]:
    """The simple commands of a script that run, or may run, in their order.

    Args:
        text: the script.
        variables: set before it begins.
        assumed: what it does not settle.
    """
    reader = _Reader(text, {**(variables or {}), **assumed.given}, assumed)
    reader.read()
    return tuple(reader.commands)


class _Reader:
    def __init__(self, text: str, variables: dict[str, str], assumed: Assumptions = NOTHING_ASSUMED) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._variables = variables
        self._given = assumed.given
        self._flow = ControlFlow(assumed.undecided)
        self._shifted = 0
        self._has_array = False
        """An array is assigned in the command at hand, which has no word of it."""
        self._arrays: dict[str, list[str]] = {}
        self._exported: dict[str, None] = {}
        self._words: list[str] = []
        self._word: str | None = None
        """The word that has begun; None between words."""
        self._skip_next = False
        self._here: list[tuple[str, bool]] = []
        self.commands: list[ShellCommand] = []

    def read(self) -> None:
        while self._at < len(self._text):
            self._step(self._text[self._at])
        self._end_command()

    def _step(self, char: str) -> None:
        if char == "\\":
            self._escape()
        elif char == "'":
            self._single()
        elif char == '"':
            self._double()
        elif char == "$":
            self._unquoted_expansion()
        elif char == "`":
            self._add(self._skip_backquotes())
        elif char == "#" and self._word is None:
            self._at = self._line_end()
        elif char == "~" and self._word is None and self._text[self._at + 1 : self._at + 2] in ("/", " ", ""):
            self._add(self._value("HOME"))
            self._at += 1
        elif char in "<>":
            self._redirect()
        elif char in _ENDS:
            self._end(char)
        elif char in " \t":
            self._end_word()
            self._at += 1
        else:
            self._add(char)
            self._at += 1

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _line_end(self) -> int:
        found = self._text.find("\n", self._at)
        return len(self._text) if found < 0 else found

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following != "\n":
            self._add(following)
        self._at += 2

    def _single(self) -> None:
        end = self._text.find("'", self._at + 1)
        end = len(self._text) if end < 0 else end
        self._add(self._text[self._at + 1 : end])
        self._at = end + 1

    def _double(self) -> None:
        before, is_empty_list = self._word, False
        self._at += 1
        self._add("")
        while self._at < len(self._text) and self._text[self._at] != '"':
            char = self._text[self._at]
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                self._add(self._text[self._at + 1].replace("\n", ""))
                self._at += 2
            elif char == "$":
                values = self._expansion()
                is_empty_list |= not values
                for value in values[:-1]:  # "${ARRAY[@]}": a word each
                    self._add(value)
                    self._end_word()
                self._add(values[-1] if values else "")
            elif char == "`":
                self._add(self._skip_backquotes())
            else:
                self._add(char)
                self._at += 1
        self._at += 1
        if is_empty_list and not self._word:
            self._word = before

    def _unquoted_expansion(self) -> None:
        values = self._expansion()
        is_assignment = self._word is not None and _ASSIGNMENT.fullmatch(self._word) is not None
        parts = ["".join(values)] if is_assignment else [part for value in values for part in value.split()]
        for part in parts[:-1]:
            self._add(part)
            self._end_word()
        if parts:
            self._add(parts[-1])

    def _expansion(self) -> list[str]:
        """The values of `$…` at this place: several of an array."""
        rest = self._text[self._at + 1 : self._at + 2]
        if rest == "(":
            self._at += 1
            self._skip_brackets()
            return [f"{UNKNOWN}$(…){UNKNOWN}"]
        if rest == "{":
            end = self._closing_brace()
            inner = self._text[self._at + 2 : end]
            self._at = end + 1
            return self._braced(inner)
        found = _NAME.match(self._text, self._at + 1)
        if found is None:
            self._at += 1
            return ["$"]
        self._at = found.end()
        return self._values(found[0])

    def _values(self, name: str) -> list[str]:
        """One value; of `$@` those of the parameters that are known."""
        if name not in ("@", "*"):
            return [self._value(name)]
        numbers = takewhile(lambda number: str(number) in self._variables, count(1 + self._shifted))
        return [self._variables[str(number)] for number in numbers]

    def _value(self, name: str) -> str:
        if name.isdigit() and name != "0":
            name = str(int(name) + self._shifted)
        return self._variables.get(name, f"{UNKNOWN}{name}{UNKNOWN}")

    def _braced(self, inner: str) -> list[str]:
        found = _BRACED.fullmatch(inner)
        if found is None:
            return [f"{UNKNOWN}${{{inner}}}{UNKNOWN}"]
        name, is_array, operator, other = found.groups()
        if is_array:
            return self._arrays.get(name, [self._variables[name]] if self._variables.get(name) else [])
        value = self._variables.get(name, "")
        is_set = value != "" and not is_unset(value)
        if operator in ("-", "=") and not is_set:
            return [_expanded(other, self._variables)]
        if operator == "+":
            return [_expanded(other, self._variables)] if is_set else [""]
        return self._values(name)

    def _closing_brace(self) -> int:
        depth = 0
        for at in range(self._at + 1, len(self._text)):
            depth += {"{": 1, "}": -1}.get(self._text[at], 0)
            if depth == 0:
                return at
        return len(self._text)

    def _skip_brackets(self) -> None:
        """Moves behind the bracket that closes the one at this place."""
        depth = 0
        while self._at < len(self._text):
            depth += {"(": 1, ")": -1}.get(self._text[self._at], 0)
            self._at += 1
            if depth == 0:
                return

    def _skip_backquotes(self) -> str:
        found = self._text.find("`", self._at + 1)
        self._at = len(self._text) if found < 0 else found + 1
        return f"{UNKNOWN}$(…){UNKNOWN}"

    def _redirect(self) -> None:
        here = _HERE.match(self._text, self._at)
        if self._word is not None and self._word.isdigit():
            self._word = None  # the number of a file: 2>
        self._end_word()
        if here is not None:
            self._here.append((here[3], bool(here[1])))
            self._at = here.end()
            return
        while self._text[self._at : self._at + 1] in ("<", ">", "&", "|"):
            self._at += 1
        self._skip_next = True

    def _end(self, char: str) -> None:
        named = _ASSIGNMENT.fullmatch(self._word) if self._word is not None else None
        if char == "(" and named is not None and not named[3]:
            self._array(named[1], more=bool(named[2]))
            return
        if char == "&" and self._text[self._at + 1 : self._at + 2] == ">":
            self._at += 1
            self._redirect()
            return
        if self._text.startswith("((", self._at) and self._word is None and self._arithmetic():
            return
        pair = self._text[self._at : self._at + 2]
        separator = pair if pair in ("&&", "||", ";;") else char
        if char == "(":
            self._words = self._flow.begin(self._words, "")
        is_group = char == "(" and self._word is None and not self._words
        self._end_command(separator)
        self._at += len(separator)
        if separator == ";;":
            self._flow.next_branch()
        elif is_group:
            self._flow.open_bracket()
        elif char == ")":
            self._flow.close_bracket()
        elif char == "\n":
            self._skip_documents()

    def _arithmetic(self) -> bool:
        """Reads `((…))` as the words of a test. False if it has no end."""
        end = self._text.find("))", self._at)
        if end < 0:
            return False
        inner = self._text[self._at + 2 : end]
        filled = _IN_ARITHMETIC.sub(lambda one: self._value(one[1] or one[2]), inner)
        self._words += ["((", filled]
        self._at = end + 2
        return True

    def _array(self, name: str, *, more: bool) -> None:
        """Reads `NAME=(…)`."""
        self._words = self._flow.begin(self._words, "")
        begin = self._at + 1
        self._skip_array()
        inner = _Reader(self._text[begin : self._at - 1], self._variables)
        inner._arrays = self._arrays
        inner.read()
        words = [word for command in inner.commands for word in command.words]
        self._word, self._has_array = None, True
        if not self._flow.runs:
            return
        if name in self._given:
            self._arrays.setdefault(name, self._given[name].split())
            words = words if more else []
        self._arrays[name] = (self._arrays.get(name, []) if more or name in self._given else []) + words
        self._variables.pop(name, None)

    def _skip_array(self) -> None:
        quote = ""
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == "#" and self._text[self._at - 2].isspace():
                self._at = self._line_end()
            elif char == ")":
                return

    def _skip_documents(self) -> None:
        for word, is_indented in self._here:
            while self._at < len(self._text):
                end = self._line_end()
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.strip("\t") if is_indented else line) == word:
                    break
        self._here.clear()

    def _end_word(self) -> None:
        if self._word is not None:
            if not self._skip_next:
                self._words.append(self._word)
            self._skip_next = False
        self._word = None

    def _end_command(self, separator: str = "") -> None:
        self._end_word()
        self._skip_next = False
        words, self._words = self._flow.begin(self._words, separator), []
        has_array, self._has_array = self._has_array, False
        if not words and not has_array:
            return
        in_front = len(list(takewhile(_ASSIGNMENT.fullmatch, words)))
        is_assignment = in_front == len(words) or words[0] in _DECLARES
        if not self._flow.runs:
            self._skip(words if is_assignment else ())
        elif in_front == len(words):
            self._assign(words)
        elif words[0] in _DECLARES:
            self._declare(words)
        elif words[in_front] not in TESTS and words[-1] != "]]":
            self._run(words, in_front)
        self._flow.end(words, separator, is_assignment=is_assignment)

    def _skip(self, words: Iterable[str]) -> None:
        """Variables that the script sets in a branch that does not run are empty."""
        for word in words:
            if found := _ASSIGNMENT.fullmatch(word):
                self._variables.setdefault(found[1], "")

    def _declare(self, words: Sequence[str]) -> None:
        named = [word for word in words[1:] if not word.startswith("-")]
        self._assign([word for word in named if _ASSIGNMENT.fullmatch(word)])
        if words[0] == "export" or "-x" in words:
            self._exported |= dict.fromkeys(word.partition("=")[0] for word in named)

    def _run(self, words: Sequence[str], in_front: int) -> None:
        """Adds a command with assignments in front of it."""
        if words[0] == "shift" and self._flow.is_certain:
            self._shifted += int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
        env = {name: self._variables[name] for name in self._exported if name in self._variables}
        env |= {found[1]: found[3] for word in words[:in_front] if (found := _ASSIGNMENT.fullmatch(word))}
        self.commands.append(ShellCommand(tuple(words[in_front:]), env, dict(self._variables)))

    def _assign(self, words: Sequence[str]) -> None:
        for word in words:
            if found := _ASSIGNMENT.fullmatch(word):
                name, more, value = found.groups()
                # Run without arguments, a script keeps the default that `--model) MODEL=$2` replaces.
                is_kept = UNKNOWN in value and self._variables.get(name) and not self._flow.is_certain
                if more or not (is_kept or name in self._given):
                    self._variables[name] = (self._variables.get(name, "") if more else "") + value


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """The default of a variable: `${MODEL:-"$ORG/name"}`."""
    reader = _Reader(text, dict(variables))
    reader.read()
    return " ".join(word for command in reader.commands for word in command.words)
