"""Security advisories of the engines: `advisories.yaml`, checked on load."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries
from sparkfleet.knowledge.versions import is_within, parse_range
from sparkfleet.specs.deployment import PlannedEngine
from sparkfleet.values import Value


def _range(text: str) -> str:
    parse_range(text)
    return text


class Advisory(Value):
    """One published vulnerability of an engine."""

    id: str
    """CVE id."""
    engine: PlannedEngine
    versions: Annotated[str, AfterValidator(_range)]
    """Affected versions, as a range (versions.py)."""
    fixed: str
    """First version without it; "" if none was published."""
    effect: Literal["takeover", "option-code", "model-code", "port-code", "access", "denial", "port-denial"]
    """takeover: a request to the API runs code; option-code: the same, with an option that sparkfleet does not set;
    model-code: a repository of weights does; port-code: a message to an inner port; access: a request gets what it should
    not, without code; denial: a request stops the server; port-denial: a message to an inner port does."""
    title: str
    sources: Sources
    date: Date


class Advisories(Value):
    """Contents of the file, in its order."""

    advisories: UniqueEntries[Advisory]


ADVISORIES = DataFile("engines/advisories.yaml", Advisories)


@lru_cache(maxsize=1024)
def advisories_of(engine: str, version: str | None) -> tuple[str, ...]:
    """Ids of the advisories that affect a version of an engine; none for a version that is not known."""
    if not version:
        return ()
    return tuple(
        one.id
        for one in ADVISORIES.content.advisories
        if one.engine == engine and is_within(version, one.versions)
    )
