"""Rewords pydantic's errors for the person who wrote the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import unquote

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from sparkfleet.specs.document import Document, FileProblem
from sparkfleet.specs.field_descriptions import field_descriptions
from sparkfleet.specs.fields import (
    HUB_ADDRESS,
    PROBLEMS,
    FrozenDict,
    Problem,
    Where,
    escape,
    nearest,
    quote,
    thousands,
    unknown,
)
from sparkfleet.specs.flag_fields import field_of
from sparkfleet.specs.gguf_names import tag_of
from sparkfleet.specs.model_name import MAIN


def explained(
    model: type[BaseModel], document: Document, errors: list[ErrorDetails]
) -> Iterator[FileProblem]:
    """Problems found by validating `document` against `model`, one entry each."""
    meant = {
        (*loc[:-1], nearest(str(loc[-1]), _fields(model, loc[:-1])))
        for loc in (error["loc"] for error in errors if error["type"] == "extra_forbidden")
    }
    for error in errors:
        for where, text in _problems(model, error):
            # A misspelt field is not also a missing one.
            if where in document.lines or where not in meant:
                yield FileProblem(_line(document, where), where, text)


def in_file(document: Document, problems: Iterable[Problem]) -> Iterator[FileProblem]:
    """Problems of a valid file with their lines, each once."""
    for where, text in dict.fromkeys(problems):
        yield FileProblem(_line(document, where), where, text)


def _problems(model: type[BaseModel], error: ErrorDetails) -> Iterator[tuple[Where, str]]:
    field_or_value = error["type"] == "extra_forbidden" or not _is_key(error["loc"])
    where = error["loc"] if field_or_value else error["loc"][:-1]
    if error["type"] == PROBLEMS:
        for inner, text in error["ctx"]["problems"]:
            yield (*where, *inner), text
    elif error["type"] != "too_short" or len(error["input"]) < error["ctx"]["min_length"]:
        # Pydantic counts only valid items of a list; a list with invalid items is not reported as too short as well.
        yield where, _sentence(model, error)


def _sentence(model: type[BaseModel], error: ErrorDetails) -> str:
    kind, loc, given = error["type"], error["loc"], error["input"]
    if kind == "extra_forbidden":
        return _unknown_field(model, loc)
    if kind == "missing":
        return f"missing. Expected {_meaning(model, loc)}"
    if kind == "literal_error":
        return _not_listed(model, given, loc)
    if kind == "string_type" and isinstance(given, bool | int | float):
        return f"found {_found(given, loc)}. Expected text; put it in quotes."
    expected = _EXPECTED.get(kind, "{msg}").format(msg=escape(error["msg"]), **error.get("ctx", {}))
    return f"found {_found(given, loc)}. Expected {expected}.{_meant(kind, loc, given)}"


def _unknown_field(model: type[BaseModel], loc: Where) -> str:
    """The place of a field at a wrong indentation, the field of a flag, or the known fields."""
    name, known = str(loc[-1]), _fields(model, loc[:-1])
    inside = [
        outer
        for outer, field in _model(model, loc[:-1]).model_fields.items()
        if any(name in one.model_fields for one in _mappings(field.annotation))
    ]
    if inside:
        places = " or ".join(f"`{outer}: {{{name}: …}}`" for outer in inside)
        return f"no field here. Expected under {' or '.join(inside)}, indented: {places}."
    around = loc[: -3 if len(loc) > 2 and isinstance(loc[-2], int) else -2]
    if len(loc) > 1 and any(name in one.model_fields for one in _mappings(_kind(model, around))):
        outer = loc[len(around)]
        return f"no field under {outer}. Expected beside {outer}, with the same indentation."
    own = field_of(name) if "engine_args" in known else None
    if own is not None:
        return f'unknown field "{name}", a flag of engines. Expected `{own}`.'
    may_be_flag = "engine_args" in known and nearest(name, known) is None
    if may_be_flag and re.fullmatch(r"[a-z]+([_-][a-z0-9]+)+", name):
        flag = name.replace("_", "-")
        return (
            f'unknown field "{name}". Expected, if it is a flag of the engine: `engine_args: [--{flag}, …]`.'
        )
    hint = " A flag of the engine is an item of `engine_args`." if may_be_flag else ""
    return unknown("field", name, known) + hint


def _mappings(kind: Any) -> Iterator[type[BaseModel]]:
    """The models among the alternatives of a field's type."""
    if get_origin(kind) in (Annotated, Union, UnionType):
        for one in get_args(kind):
            yield from _mappings(one)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind


def _meant(kind: str, loc: Where, given: Any) -> str:
    """A hint for a value in a common short form, as it has to be written; "" for any other."""
    meant = _written(kind, str(loc[-1]), given) if loc else None
    return f" Did you mean {meant}?" if meant else ""


def _written(kind: str, field: str, given: Any) -> str | None:
    """One item for a list, a number for `parallel`, the address of a model's page for its id, "32k" for 32768."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return f"`{field}: {{tp: {given}}}`" if (kind, field) == ("model_type", "parallel") else None
    if not isinstance(given, str):
        return None
    if kind == "tuple_type" and not field.isdigit() and re.fullmatch(r"[\w./-]{1,128}", given):
        return f"`{field}: [{given}]`"
    if kind == "form" and (page := _PAGE.fullmatch(given)):
        at, file = page["revision"] or page["commit"], page["file"] or page["shown"]
        revision = f"@{at}" if at and (not file or at != MAIN) else ""
        tag = f":{tag_of(unquote(file))}" if file else ""
        return f"`{field}: {page['id']}{revision}{tag}`"
    if kind == "int_type" and (tokens := thousands(given)) is not None:
        return f"{tokens}"
    return None


_PAGE = re.compile(
    rf"{HUB_ADDRESS}(?P<id>[\w.-]{{1,96}}/[\w.-]{{1,96}})(?:/tree/(?P<revision>[\w./-]{{1,128}}?)"
    r"|/(?:blob|resolve)/(?P<commit>[\w.-]{1,128})/(?P<file>[\w./%-]{1,256}\.gguf)(?:\?\S{0,256})?)?/?"
    r"(?:\?(?:\S{0,256}&)?show_file_info=(?P<shown>[\w./%-]{1,256}\.gguf)(?:&\S{0,256})?)?",
    re.ASCII,
)
"""The address of a model's page, without or with a revision, or of a GGUF file."""


def _not_listed(model: type[BaseModel], given: Any, loc: Where) -> str:
    kind = _bare(get_args(_kind(model, loc[:-2]))[0]) if _is_key(loc) else _kind(model, loc)
    known = get_args(kind)
    if isinstance(given, str):
        return unknown(_noun(loc), given, known)
    return f"found {_found(given, loc)}. Expected one of {', '.join(known)}."


_EXPECTED = {
    "form": "{expected}",
    "string_type": "text",
    "string_unicode": "text in Unicode",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping (`key: value` lines)",
    "model_type": "a mapping (`key: value` lines)",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
}


def _found(given: Any, where: Where) -> str:
    """The found value in words. Values of environment variables are omitted: they may be secret."""
    if given is None:
        return "nothing"
    if isinstance(given, dict | tuple):
        return f"a {'list' if isinstance(given, tuple) else 'mapping'} of {len(given)}"
    if "env" in where and not _is_key(where):
        return "text" if isinstance(given, str) else "a number or true/false"
    if isinstance(given, bool):
        return str(given).lower()
    return quote(given) if isinstance(given, str) else f"the number {given}"


def _is_key(loc: Where) -> bool:
    """True if pydantic refers to a key of a mapping, not to the value under it."""
    return loc[-1:] == ("[key]",)


def _noun(loc: Where) -> str:
    """Name of a value: the engine of `engine`, a need of `needs`, an engine as a key of `engines`."""
    if _is_key(loc):
        return str(loc[-3]).removesuffix("s")
    return str(loc[-2]).removesuffix("s") if isinstance(loc[-1], int) else loc[-1]


def _meaning(model: type[BaseModel], loc: Where) -> str:
    """The first sentence of the field's description, to follow "Expected"."""
    description = field_descriptions(_model(model, loc[:-1])).get(str(loc[-1]), "it")
    first = " ".join(description.split()).partition(". ")[0].rstrip(".")
    return f"{first[0].lower()}{first[1:]}."


def _fields(model: type[BaseModel], loc: Where) -> tuple[str, ...]:
    return tuple(_model(model, loc).model_fields)


def _model(model: type[BaseModel], loc: Where) -> type[BaseModel]:
    kind = _kind(model, loc)
    assert isinstance(kind, type), f"{loc} is no model"
    assert issubclass(kind, BaseModel), f"{loc} is no model"
    return kind


def _kind(model: type[BaseModel], loc: Where) -> Any:
    """The type of the field at `loc`, without `None` and `Annotated`."""
    kind: Any = model
    for step in loc:
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        elif get_origin(kind) is FrozenDict:
            kind = get_args(kind)[1]
        else:
            kind = kind.model_fields[step].annotation
        kind = _bare(kind)
    return kind


def _bare(kind: Any) -> Any:
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = get_args(kind)[0]
    return kind


def _line(document: Document, where: Where) -> int:
    """The line of `where`, or of the innermost field around it that is in the file."""
    while where not in document.lines:
        where = where[:-1]
    return document.lines[where]
