"""YAML as plain values: what is text, what is a number, what is refused, and on which line."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.specs.document import MAX_BYTES, MAX_NODES, FileProblem, UnreadableError, dump, read


@pytest.mark.parametrize(
    "text",
    ["no", "yes", "on", "off", "y", "NO", "1:30", "0o8", "1_000", "2024-01-01", "0x", "1.2.3", "=", "<<", "tRue", "1e"],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    assert read(f"a: {text}").value == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("0", 0), ("-7", -7), ("+7", 7),
        ("010", 10), ("0o17", 15), ("0x1F", 31), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("1.", 1.0),
        (".inf", math.inf), ("-.INF", -math.inf), ("9" * 18, 10**18 - 1), ("9" * 30, float("9" * 30)),
        ("'1'", "1"), ('"true"', "true"),
    ],
)  # fmt: skip
def test_scalars_of_the_core_schema(text: str, value: Any) -> None:
    found = read(f"a: {text}").value["a"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    assert found == value
    assert isinstance(found, type(value)) if number else type(found) is type(value)
    assert not number or found.written == text


def test_not_a_number() -> None:
    assert math.isnan(read(".nan").value)


def test_lines_of_keys_and_items() -> None:
    document = read("# first\na: 1\nb:\n  - x\n  -\n    c: 2\n")
    assert document.value == {"a": 1, "b": ("x", {"c": 2})}
    assert document.lines == {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 4,
        ("b", 1): 6,
        ("b", 1, "c"): 6,
    }


def test_an_alias_is_its_anchor() -> None:
    assert read("a: &x {b: 1}\nc: *x").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_repeated_key() -> None:
    document = read("a: 1\nb: {c: 1,\n  c: 2}\na: 3")
    assert document.value == {"a": 1, "b": {"c": 1}}
    assert document.findings == (
        FileProblem(3, ("b", "c"), "already given on line 2. Expected once."),
        FileProblem(4, ("a",), "already given on line 1. Expected once."),
    )


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5", "[a]", "{a: b}", "~"])
def test_a_key_that_is_not_text(key: str) -> None:
    document = read(f"a: 1\n? {key}\n: x")
    assert document.value == {"a": 1}
    assert [(finding.line, finding.where) for finding in document.findings] == [(2, ())]
    assert "is not text. Expected text; put it in quotes." in document.findings[0].text


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", None, "is empty. Expected a mapping (`key: value` lines)."),
        ("# only this\n", None, "is empty. Expected a mapping (`key: value` lines)."),
        ("a: 1\n---\nb: 2", 2, "a second document starts here. Expected one document per file."),
        ("a: 1\nb: !!python/none x", 2, 'found the tag "tag:yaml.org,2002:python/none". Expected values without tags.'),
        ("!x a: 1", 1, 'found the tag "!x". Expected values without tags.'),
        ("a: 1\nb: \x07", 2, "found the character \\x07. Expected text without control characters."),
        ("[" * 100, 1, "nested deeper than 20 levels. Expected fewer."),
        ("a: &a [*a]", 1, "nested deeper than 20 levels. Expected fewer."),
        (BOMB, 1, f"more than {MAX_NODES} values up to here. Expected fewer."),
        ("- x\n" * (MAX_NODES + 1), MAX_NODES, f"more than {MAX_NODES} values up to here. Expected fewer."),
        ("a" * (MAX_BYTES + 1), None, f"has {MAX_BYTES + 1} characters. Expected at most {MAX_BYTES}."),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "not YAML: a number in an escape or a directive is too large."),
        (f"%YAML 1.{'1' * 5000}\n--- a", 1, "not YAML: a number in an escape or a directive is too large."),
        ("a: 1\nb: *c", 2, "not YAML: found undefined alias 'c'."),
        ("a:\n\t- b", 2, "not YAML: while scanning for the next token, found character '\\t' that cannot start any token."
         " Expected spaces: YAML is not indented by tabs."),
        ("a: 1\nb\nc: 1", 3, "not YAML: while scanning a simple key, could not find expected ':'."),
        ("a: [1", 1, "not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'."),
    ],
)  # fmt: skip
def test_unreadable(text: str, line: int | None, expected: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(text)
    assert (caught.value.line, caught.value.text) == (line, expected)


def plain(value: Any) -> Any:
    """Lists as `read` gives them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list) else value


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["no", "1e5", "0o17", "1:30", "~", "null", "0x1", ".inf", "-", "a: b", "#", "\x85", "\u2028", "x\n y", "9" * 20, "<<"]
)  # fmt: skip
SCALARS = TEXT | st.booleans() | st.none() | st.integers(-(10**17), 10**17)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


@given(VALUES)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    document = read(dump(value))
    assert document.value == plain(value)
    assert document.findings == ()


@given(TEXT)
def test_what_is_dumped_is_the_same_for_yaml_1_1(text: str) -> None:
    assert yaml.safe_load(dump({"a": text})) == {"a": text}
