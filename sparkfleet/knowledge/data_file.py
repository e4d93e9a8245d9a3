"""Packaged YAML files as checked values: every error has its file, entry and field."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Any, Generic, TypeVar

import yaml
from pydantic import AfterValidator, ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.values import Value

V = TypeVar("V", bound=Value)

Data = Mapping[str, object]

# libyaml if PyYAML has it: ten times as fast, and the files are long.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # whichever of the two it is
    """Safe YAML in which dates stay text and a key is given once."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML reads it from the class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping. A second value for a key is an error; PyYAML would use the last one."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is given twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


class DataFile(Generic[V]):
    """A YAML file of a package: `version: 1`, then a section for each field of `model`.

    Args:
        name: path in the package.
        model: its content.
        package: the package that has it.
        do: remedy if it is not valid.
    """

    def __init__(
        self, name: str, model: type[V], *, package: str = "sparkfleet.knowledge", do: str = ""
    ) -> None:
        self.name = f"{package.rpartition('.')[2]}/{name}"
        self._file = files(package) / name
        self._model = model
        self._do = do

    @property
    def text(self) -> str:
        """The packaged text."""
        return self._file.read_text(encoding="utf-8")

    @cached_property
    def content(self) -> V:
        """The packaged content.

        Raises:
            SpecError: the file was edited and is no longer valid.
        """
        return self.read(self.text)

    def read(self, text: str) -> V:
        """The content in `text`.

        Raises:
            SpecError: something is wrong; `what` names file, entry and field.
        """
        data = sections(self.name, text)
        try:
            return self._model.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            what = first["msg"].removeprefix("Value error, ")
            raise SpecError(f"{self.name}: {_place(data, first['loc'])}{what}", do=self._do) from error


def packaged(name: str) -> str:
    """The text of a data file of this package."""
    return files("sparkfleet.knowledge").joinpath(name).read_text(encoding="utf-8")


def sections(name: str, text: str) -> Data:
    """The sections of a data file, `version` checked and taken off, lists as tuples.

    Raises:
        SpecError: it is not YAML, or has another version.
    """
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise SpecError(f"{name}{line}: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(data, dict) or data.get("version") != 1:
        raise SpecError(f"{name}: version: expected `version: 1` at the top")
    return {key: _frozen(value) for key, value in data.items() if key != "version"}


def _place(data: Data, loc: tuple[int | str, ...]) -> str:
    """The place of an error: an entry by its id if it has one, and the field."""
    named = [str(part) for part in loc]
    if len(loc) > 1 and isinstance(at := loc[1], int):
        entries = data[str(loc[0])]
        entry = entries[at] if isinstance(entries, tuple) else None
        name = entry.get("id") if isinstance(entry, dict) else None
        named[:2] = [str(name or f"{loc[0]}[{at}]")]
        named[1:] = named[1:] or ["entry"]
    return "".join(f"{part}: " for part in (*named[:1], ".".join(named[1:])) if part)


def _frozen(value: object) -> object:
    """`value` with every list as a tuple, as strict models require."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def pairs(value: object) -> object:
    """A mapping as pairs, for values that can be hashed."""
    return tuple(value.items()) if isinstance(value, dict) else value


def _each_once(found: tuple[V, ...]) -> tuple[V, ...]:
    ids = [getattr(one, "id") for one in found]  # noqa: B009 (every entry has one)
    if twice := next((one for at, one in enumerate(ids) if one in ids[:at]), None):
        raise ValueError(f"{twice}: id: is given twice")
    return found


def _dated(text: str) -> str:
    parts = text.split("-")
    limits = ((2024, 2100), (1, 12), (1, 31))
    if not 1 <= len(parts) <= len(limits) or not all(
        part.isdecimal() and low <= int(part) <= high
        for part, (low, high) in zip(parts, limits, strict=False)
    ):
        raise ValueError(f'expected a date such as "2026-05-13", "2026-05" or "2026", got "{text}"')
    return text


def _sourced(sources: tuple[str, ...]) -> tuple[str, ...]:
    if not sources or not all(source.strip() for source in sources):
        raise ValueError("expected at least one source")
    return sources


UniqueEntries = Annotated[tuple[V, ...], AfterValidator(_each_once)]
"""A section with entries, each with an `id` of its own."""

Date = Annotated[str, AfterValidator(_dated)]
"""Date of the observation or publication: a day, a month or a year."""

Sources = Annotated[tuple[str, ...], AfterValidator(_sourced)]
"""Sources: addresses, repositories, reports. Never empty."""


class MeasuredRange(Value):
    """A measured number: `low <= value <= high`, in the unit at the end of the field's name."""

    value: float
    low: float
    high: float
    note: str = ""
    sources: Sources
    date: Date

    def model_post_init(self, context: object, /) -> None:
        """Refuses a band that does not contain its value."""
        if not self.low <= self.value <= self.high:
            raise ValueError(
                f"expected low <= value <= high, got {self.low:g} <= {self.value:g} <= {self.high:g}"
            )
