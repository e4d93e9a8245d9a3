from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.data_file import DataFile, Date, MeasuredRange, Sources, UniqueEntries
from sparkfleet.values import Value


class Thing(Value):
    id: str
    size: Annotated[int, Field(ge=1)] = 1
    sources: Sources
    date: Date


class Things(Value):
    things: UniqueEntries[Thing]


def read(text: str) -> tuple[Thing, ...]:
    return DataFile("t.yaml", Things).read(text).things


def thing(**changes: object) -> str:
    fields = {"id": "a", "sources": ["x"], "date": "2026-05"} | changes
    return f"version: 1\nthings: [{fields!r}]"


def test_entries_are_read_in_order() -> None:
    items = ("{id: b, sources: [x], date: 2026-05-01}", "{id: a, size: 3, sources: [x, y], date: '2026'}")
    text = "\n- ".join(["version: 1\nthings:", *items])
    first, second = read(text)
    assert (first.id, first.date) == ("b", "2026-05-01")  # dates stay text without quotes
    assert (second.size, second.sources) == (3, ("x", "y"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("things: [", r"knowledge/t\.yaml:\d: "),
        ("things: []", r"knowledge/t\.yaml: version"),
        ("- 1", r"knowledge/t\.yaml: version"),
        ("version: 2\nthings: []", r"knowledge/t\.yaml: version"),
        ("version: 1", r"knowledge/t\.yaml: things: Field required"),
        ("version: 1\nthings: []\nthinks: []", r"knowledge/t\.yaml: thinks: Extra inputs"),
        ("version: 1\nthings: {}", r"knowledge/t\.yaml: things: Input should be"),
        ("version: 1\nthings: [3]", r"knowledge/t\.yaml: things\[0\]: entry: "),
        ("version: 1\nthings:\n- {id: a, id: b}", r"knowledge/t\.yaml:3: id is given twice"),
        (thing(size=0), r"knowledge/t\.yaml: a: size: "),
        (thing(size="2"), r"knowledge/t\.yaml: a: size: "),
        (thing(colour="red"), r"knowledge/t\.yaml: a: colour: "),
        (thing(sources=[]), r"knowledge/t\.yaml: a: sources: expected at least one source"),
        (thing(sources=[" "]), r"knowledge/t\.yaml: a: sources: expected at least one source"),
        (thing(date="May 2026"), r"knowledge/t\.yaml: a: date: expected a date"),
        (thing(date="2026-13"), r"knowledge/t\.yaml: a: date: expected a date"),
        (thing(date="2026-05/06"), r"knowledge/t\.yaml: a: date: expected a date"),
        (thing(date="1999"), r"knowledge/t\.yaml: a: date: expected a date"),
    ],
)
def test_an_error_names_file_entry_and_field(text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        read(text)


def test_an_entry_stands_once() -> None:
    with pytest.raises(SpecError, match=r"knowledge/t\.yaml: things: a: id: is given twice"):
        read(
            "version: 1\nthings:\n- {id: a, sources: [x], date: '2026'}\n- {id: a, sources: [x], date: '2026'}"
        )


def test_code_in_yaml_is_not_run() -> None:
    with pytest.raises(SpecError):
        read("version: 1\nthings: !!python/object/apply:os.getcwd []")


def test_a_band_contains_its_value() -> None:
    fields: dict[str, object] = {"value": 3.0, "low": 1.0, "high": 2.0, "sources": ("x",), "date": "2026"}
    with pytest.raises(ValidationError, match="expected low <= value <= high, got 1 <= 3 <= 2"):
        MeasuredRange.model_validate(fields)
    assert MeasuredRange.model_validate(fields | {"high": 3.0}).value == 3.0
