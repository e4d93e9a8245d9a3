"""Reads YAML text as plain values with their lines, and writes plain values as YAML text.

The values are those of YAML 1.2's core schema: `no`, `on`, `1:30` and `2024-01-01` are text, only true and false are
booleans. A number keeps its text, for fields of text that take one. Tags, several documents, repeated keys and keys that are
not text are refused; aliases are followed within limits.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from sparkfleet.specs.fields import Where, WrittenFloat, WrittenInt, escape, quote

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Values in one document, each counted as often as it is used: an alias bomb ends here."""
MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
_CORE = {
    "null": r"(~|null|Null|NULL|)\Z",
    "bool": r"(true|True|TRUE|false|False|FALSE)\Z",
    # 18 digits fit 64 bits, and int() refuses thousands of them; a longer number reads as a float.
    "int": r"([-+]?[0-9]{1,18}|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15})\Z",
    "float": r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z",
}


class UnreadableError(Exception):
    """The text is no YAML document. `line` counts from 1; None: the error concerns the whole text."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


class FileProblem(NamedTuple):
    """One error in a file."""

    line: int | None
    where: Where
    text: str


class Document(NamedTuple):
    """A parsed text: mappings are dicts, lists are tuples."""

    value: Any
    lines: dict[Where, int]
    """The line of every key and list item, from 1."""
    findings: tuple[FileProblem, ...]
    """Entries that are left out of `value`: repeated keys, and keys that are not text."""


def read(text: str) -> Document:
    """Parse the one document in `text`.

    Raises:
        UnreadableError: the text is not YAML, or exceeds the limits of this module.
    """
    if len(text) > MAX_BYTES:
        raise UnreadableError(None, f"has {len(text)} characters. Expected at most {MAX_BYTES}.")
    root = _compose(text)
    if root is None:
        raise UnreadableError(None, "is empty. Expected a mapping (`key: value` lines).")
    values = _Values()
    value = values.of(root, ())
    return Document(value, values.lines, tuple(values.findings))


def dump(value: Any) -> str:
    """`value` (dicts, lists, tuples, text, numbers) as YAML that `read` gives back unchanged."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100)
    return text


_EXPECTED = {
    r"'\t'": " Expected spaces: YAML is not indented by tabs.",
    "mapping values are not allowed": " Expected one `key: value` a line, with the keys of one mapping in one column.",
    "block mapping": " Expected one `key: value` a line, with the keys of one mapping in one column.",
}
"""Form of a right line, by a part of the parser's reason."""


def _compose(text: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = escape(text[error.position])
        raise UnreadableError(
            line, f"found the character {character}. Expected text without control characters."
        ) from None
    try:
        return loader.only_document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        expected = next((words for part, words in _EXPECTED.items() if part in reason), "")
        raise UnreadableError(
            mark.line + 1 if mark else None, f"not YAML: {escape(reason)}.{expected}"
        ) from None
    except (ValueError, OverflowError):  # PyYAML raises them for "\UFFFFFFFF" and for %YAML 1.<5000 digits>
        raise UnreadableError(
            loader.line + 1, "not YAML: a number in an escape or a directive is too large."
        ) from None


class _Loader(yaml.SafeLoader):
    """Composes nodes. Refuses tags, and more nodes or depth than a person writes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def only_document(self) -> yaml.Node | None:
        root = self.get_node() if self.check_node() else None
        if root is not None and self.check_node():
            line = self.current_event.start_mark.line + 1
            raise UnreadableError(line, "a second document starts here. Expected one document per file.")
        return root

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.check_event()  # sets `current_event`
        event = self.current_event
        line = event.start_mark.line + 1
        if tag := getattr(event, "tag", None):
            raise UnreadableError(line, f"found the tag {quote(tag)}. Expected values without tags.")
        self._count += 1
        self._depth += 1
        _limit(self._count, self._depth, line)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Values:
    """Converts nodes to plain values, and collects their lines and errors."""

    def __init__(self) -> None:
        self.lines: dict[Where, int] = {}
        self.findings: list[FileProblem] = []
        self._count = 0

    def of(self, node: yaml.Node, where: Where) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(where, line)
        self._count += 1
        _limit(self._count, len(where), line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.of(item, (*where, index)) for index, item in enumerate(node.value))
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = self._key(key_node, where), key_node.start_mark.line + 1
            if key is None:
                continue
            if key in values:
                first = self.lines[*where, key]
                self.findings.append(
                    FileProblem(line, (*where, key), f"already given on line {first}. Expected once.")
                )
                continue
            self.lines[*where, key] = line
            values[key] = self.of(value_node, (*where, key))
        return values

    def _key(self, node: yaml.Node, where: Where) -> str | None:
        if node.tag == f"{_TAG}str":
            return str(node.value)
        found = f"the key {escape(node.value[:60])}" if isinstance(node, yaml.ScalarNode) else "a key"
        text = f"{found} is not text. Expected text; put it in quotes."
        self.findings.append(FileProblem(node.start_mark.line + 1, where, text))
        return None


def _scalar(node: yaml.Node) -> str | int | float | bool | None:
    text: str = node.value
    match node.tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            whole = WrittenInt(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            whole.written = text
            return whole
        case "float":
            number = WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            number.written = text
            return number
    return text


def _limit(count: int, depth: int, line: int) -> None:
    if count > MAX_NODES:
        raise UnreadableError(line, f"more than {MAX_NODES} values up to here. Expected fewer.")
    if depth > MAX_DEPTH:
        raise UnreadableError(line, f"nested deeper than {MAX_DEPTH} levels. Expected fewer.")


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or the core schema would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {}  # not YAML 1.1's
for _kind, _pattern in _CORE.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(_pattern), [None])
    _Dumper.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(_pattern), [None])
