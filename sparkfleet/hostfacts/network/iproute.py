"""Parses the output of iproute2 with `-j`: a JSON list of objects."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sparkfleet.hostfacts.fact import json_of, unexpected_output
from sparkfleet.specs.fields import quote

Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""A name without spaces and control characters, safe to print on a terminal."""
U32 = Annotated[int, Field(ge=0, le=1 << 32)]
"""A number of 32 bits, such as an MTU or the metric of a route."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class Entry(BaseModel):
    """One object of the list. Fields that a parser does not name are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


E = TypeVar("E", bound=Entry)


def entries(model: type[E], output: str, what: str) -> list[E]:
    """The list of objects. Empty output is an empty list; `{}`, which some versions print for a filtered row, is skipped.

    Raises:
        FactError: it is no list, or `model` does not accept one of its objects.
    """
    if not output.strip():
        return []
    return [checked(model, entry, what) for entry in json_of(output, list, what) if entry != {}]


def checked(model: type[E], entry: object, what: str) -> E:
    """One object. Raises FactError if `model` does not accept it."""
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        raise unexpected_output(what, f"{where}: {quote(str(entry))}") from None


def mac_of(word: str) -> str:
    """A MAC in lower case with colons; "" for anything else, such as the address of a tunnel."""
    mac = word.lower()
    return mac if _MAC.fullmatch(mac) else ""
