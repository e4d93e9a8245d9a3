"""Splits a shell script into its commands, with the variables that it sets: nothing of it is run, and no file is read.

It reads the part of POSIX shells and bash that launch scripts are written in: quotes, comments, continued lines, variables
with defaults, arrays, redirections and here-documents. Conditions and loops are read as if each line ran once.
(`bashlex`, the library for it, has a licence that this project's does not allow to be shipped with.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN = "\ufffc"
"""Stands around the name of a variable whose value is not known, and around $(…)."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL | re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*#]+)(\[[@*]\])?(?::?([-=?+])(.*))?", re.DOTALL | re.ASCII)
_HERE = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2", re.ASCII)
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_ENDS = frozenset(";&|()\n")


class ShellCommand(NamedTuple):
    """One simple command."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    """Its environment: what the script has exported, and what is set in front of it."""
    variables: Mapping[str, str]
    """Those that the script has set before it."""


def unknown_names(word: str) -> tuple[str, ...]:
    """Variables in a word whose values are not known; `$(…)` for the output of a command."""
    return tuple(dict.fromkeys(re.findall(f"{UNKNOWN}(.*?){UNKNOWN}", word, re.DOTALL)))


def shown(word: str) -> str:
    """A word as in the script: `$NAME` for a variable without a value."""
    return re.sub(f"{UNKNOWN}(.*?){UNKNOWN}", lambda one: one[1] if one[1][:1] == "$" else f"${one[1]}", word)


def commands_of(text: str, variables: Mapping[str, str] | None = None) -> tuple[ShellCommand, ...]:
    """The simple commands of a script, in their order.

    Args:
        text: the script.
        variables: set before it begins.
    """
    reader = _Reader(text, dict(variables or {}))
    reader.read()
    return tuple(reader.commands)


class _Reader:
    def __init__(self, text: str, variables: dict[str, str]) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._variables = variables
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
            self._add(self._skip_to("`"))
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
        self._at += 1
        self._add("")
        while self._at < len(self._text) and self._text[self._at] != '"':
            char = self._text[self._at]
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                self._add(self._text[self._at + 1].replace("\n", ""))
                self._at += 2
            elif char == "$":
                values = self._expansion()
                for value in values[:-1]:  # "${ARRAY[@]}": a word each
                    self._add(value)
                    self._end_word()
                self._add(values[-1] if values else "")
            elif char == "`":
                self._add(self._skip_to("`"))
            else:
                self._add(char)
                self._at += 1
        self._at += 1

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
        return [self._value(found[0])]

    def _value(self, name: str) -> str:
        return self._variables.get(name, f"{UNKNOWN}{name}{UNKNOWN}")

    def _braced(self, inner: str) -> list[str]:
        found = _BRACED.fullmatch(inner)
        if found is None:
            return [f"{UNKNOWN}${{{inner}}}{UNKNOWN}"]
        name, is_array, operator, other = found.groups()
        if is_array:
            return self._arrays.get(name, [])
        if operator in ("-", "=") and not self._variables.get(name):
            return [_expanded(other, self._variables)]
        if operator == "+":
            return [_expanded(other, self._variables)] if self._variables.get(name) else [""]
        return [self._value(name)]

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

    def _skip_to(self, end: str) -> str:
        found = self._text.find(end, self._at + 1)
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
        self._end_command()
        self._at += 1
        if char == "\n":
            self._skip_documents()

    def _array(self, name: str, *, more: bool) -> None:
        """Reads `NAME=(…)`."""
        begin = self._at + 1
        self._skip_array()
        inner = _Reader(self._text[begin : self._at - 1], self._variables)
        inner._arrays = self._arrays
        inner.read()
        words = [word for command in inner.commands for word in command.words]
        self._arrays[name] = (self._arrays.get(name, []) if more else []) + words
        self._variables.pop(name, None)
        self._word = None

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

    def _end_command(self) -> None:
        self._end_word()
        self._skip_next = False
        words, self._words = self._words, []
        if words and words[0] in _DECLARES:
            named = [word for word in words[1:] if not word.startswith("-")]
            self._assign([word for word in named if _ASSIGNMENT.fullmatch(word)])
            if words[0] == "export" or "-x" in words:
                self._exported |= dict.fromkeys(word.partition("=")[0] for word in named)
            return
        count = 0
        while count < len(words) and _ASSIGNMENT.fullmatch(words[count]):
            count += 1
        if count == len(words):
            self._assign(words)
            return
        env = {name: self._variables[name] for name in self._exported if name in self._variables}
        env |= {found[1]: found[3] for word in words[:count] if (found := _ASSIGNMENT.fullmatch(word))}
        self.commands.append(ShellCommand(tuple(words[count:]), env, dict(self._variables)))

    def _assign(self, words: list[str]) -> None:
        for word in words:
            if found := _ASSIGNMENT.fullmatch(word):
                name, more, value = found.groups()
                self._variables[name] = (self._variables.get(name, "") if more else "") + value


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """The default of a variable: `${MODEL:-"$ORG/name"}`."""
    reader = _Reader(text, dict(variables))
    reader.read()
    return " ".join(word for command in reader.commands for word in command.words)
