"""Reading the data files of this package: lists of entries, each checked, each error with its file, entry and field."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, TypeVar

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


def packaged(name: str) -> str:
    """The text of a data file of this package."""
    return files("sparkfleet.knowledge").joinpath(name).read_text(encoding="utf-8")


def parse(name: str, text: str, sections: frozenset[str]) -> Data:
    """The sections of a data file, `version` checked and taken off.

    Raises:
        SpecError: it is not YAML, has another version, or a section that is not in `sections`.
    """
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise SpecError(f"knowledge/{name}{where}: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(data, dict) or data.get("version") != 1:
        raise SpecError(f"knowledge/{name}: version: expected `version: 1` at the top")
    found = {key: value for key, value in data.items() if key != "version"}
    if unlike := sorted(sections ^ set(found)):
        raise SpecError(f"knowledge/{name}: {unlike[0]}: expected the sections {', '.join(sorted(sections))}")
    return found


def entries(name: str, section: str, data: object, model: type[V], key: str = "id") -> tuple[V, ...]:
    """Every item of a list as a `model`, in order.

    Raises:
        SpecError: an item is wrong or is given twice; `what` names file, entry and field.
    """
    if not isinstance(data, list):
        raise SpecError(f"knowledge/{name}: {section}: expected a list of entries")
    found = tuple(entry(name, f"{section}[{at}]", item, model, key) for at, item in enumerate(data))
    ids = [getattr(item, key) for item in found]
    for at, one in enumerate(ids):
        if one in ids[:at]:
            raise SpecError(f"knowledge/{name}: {one}: {key}: is given twice")
    return found


def entry(name: str, where: str, item: object, model: type[V], key: str = "id") -> V:
    """One item as a `model`; `where` names it if it has no `key` of its own.

    Raises:
        SpecError: it is wrong; `what` names file, entry and field.
    """
    called = item.get(key, where) if isinstance(item, dict) else where
    try:
        return model.model_validate(frozen(item))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "entry"
        raise SpecError(
            f"knowledge/{name}: {called}: {field}: {first['msg'].removeprefix('Value error, ')}"
        ) from error


def frozen(value: object) -> object:
    """`value` with every list as a tuple, as strict models require."""
    if isinstance(value, list):
        return tuple(frozen(item) for item in value)
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    return value


def pairs(value: object) -> object:
    """A mapping as pairs, for values that can be hashed."""
    return tuple(value.items()) if isinstance(value, dict) else value


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
