"""Parses the output of iproute2 with `-j`: a JSON list of objects."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sparkfleet.hostfacts.fact import json_of, not_understood

Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""A name without spaces and control characters: what a terminal may be shown."""
U32 = Annotated[int, Field(ge=0, le=1 << 32)]
"""A number of 32 bits, such as an MTU or the metric of a route."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class Entry(BaseModel):
    """One object of the list. What a parser does not name is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


E = TypeVar("E", bound=Entry)


def entries(model: type[E], output: str, what: str) -> list[E]:
    """The list. Empty output is an empty one; some versions put `{}` where a filter left something out.

    Raises:
        FactError: it is no list, or holds what `model` does not take.
    """
    if not output.strip():
        return []
    return [checked(model, entry, what) for entry in json_of(output, list, what) if entry != {}]


def checked(model: type[E], entry: object, what: str) -> E:
    """One object. Raises FactError where `model` does not take it."""
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        raise not_understood(what, f"{where}: {entry!r}") from None


def mac_of(word: str) -> str:
    """A MAC in lower case with colons; "" for anything else, such as the address of a tunnel."""
    mac = word.lower()
    return mac if _MAC.fullmatch(mac) else ""
