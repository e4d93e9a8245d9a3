"""Security advisories of the engines: `advisories.yaml`, checked on load."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator

from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.knowledge.yaml_entries import Date, Sources, entries, packaged, parse
from sparkfleet.values import Value

FILE = "engines/advisories.yaml"


def _range(text: str) -> str:
    parse_range(text)
    return text


class Advisory(Value):
    """One published vulnerability of an engine."""

    id: str
    """CVE id."""
    engine: Literal["vllm", "sglang", "trtllm"]
    versions: Annotated[str, AfterValidator(_range)]
    """Affected versions, as a range (versions.py)."""
    fixed: str
    """First version without it; "" if none was published."""
    effect: Literal["takeover", "model-code", "port-code", "denial"]
    """takeover: a request to the API runs code; model-code: a repository of weights does; port-code: a message to an inner
    port; denial: a request stops the server."""
    title: str
    sources: Sources
    date: Date


@cache
def load_advisories() -> tuple[Advisory, ...]:
    """All advisories, in the order of the file.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return read_advisories(packaged(FILE))


def read_advisories(text: str, name: str = FILE) -> tuple[Advisory, ...]:
    """The advisories in `text`.

    Raises:
        SpecError: something is wrong; `what` names file, advisory and field.
    """
    return entries(name, "advisories", parse(name, text, frozenset({"advisories"}))["advisories"], Advisory)


@lru_cache(maxsize=1024)
def advisories_of(engine: str, version: str | None) -> tuple[str, ...]:
    """Ids of the advisories that affect a version of an engine; none for a version that is not known."""
    if not version:
        return ()
    return tuple(
        one.id
        for one in load_advisories()
        if one.engine == engine and parse_range(one.versions).contains(version) is Truth.YES
    )
