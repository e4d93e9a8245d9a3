"""Speculative methods by engine and release: `method_support.yaml`, checked on load.

support_of(engine, method)        the engine's name for it and its conditions; None: it has no such method
lacks(engine, version, method)    the release is known to be too old for it
takes_schedule(engine, version, method)   it takes one depth alone and another under load
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Literal

from sparkfleet.knowledge.models.speculators import EngineName
from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.knowledge.yaml_entries import Date, Sources, entries, packaged, parse
from sparkfleet.specs.deployment import Method
from sparkfleet.values import Value

FILE = "engines/method_support.yaml"


class MethodSupport(Value):
    """A speculative method of an engine."""

    id: str
    engine: EngineName
    method: Method
    name: str
    """The engine's name for it."""
    since: str | None
    """First release that has it; None: every known one."""
    pipeline: bool = True
    """True if it runs with pipeline parallelism."""
    block: Literal["drafts", "window"] = "drafts"
    """Meaning of the engine's number: the draft tokens (k), or these and the token before (k + 1)."""
    note: str = ""
    sources: Sources
    date: Date


class DepthSchedule(Value):
    """A depth by load: k alone and k under load in one engine."""

    id: str
    engine: EngineName
    methods: tuple[Method, ...]
    since: str
    note: str = ""
    sources: Sources
    date: Date


class SpeculativeEngines(Value):
    """Contents of the file."""

    methods: tuple[MethodSupport, ...]
    schedules: tuple[DepthSchedule, ...]


@cache
def load_method_support() -> SpeculativeEngines:
    """All methods of all engines.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return read_method_support(packaged(FILE))


def read_method_support(text: str, name: str = FILE) -> SpeculativeEngines:
    """The methods in `text`.

    Raises:
        SpecError: something is wrong; `what` names file, entry and field.
    """
    found = parse(name, text, frozenset({"methods", "schedules"}))
    return SpeculativeEngines(
        methods=entries(name, "methods", found["methods"], MethodSupport),
        schedules=entries(name, "schedules", found["schedules"], DepthSchedule),
    )


@lru_cache(maxsize=128)
def support_of(engine: str, method: str) -> MethodSupport | None:
    """A method on an engine; None if the engine has no such method."""
    known = load_method_support().methods
    return next((one for one in known if (one.engine, one.method) == (engine, method)), None)


def names_of(engine: str) -> dict[str, str]:
    """The methods of an engine, each with the engine's own name for it."""
    return {one.method: one.name for one in load_method_support().methods if one.engine == engine}


@lru_cache(maxsize=1024)
def lacks(engine: str, version: str, method: str) -> bool:
    """True if that release is older than the first that has the method. False for a version that cannot be ordered."""
    support = support_of(engine, method)
    return support is None or _older(version, support.since)


@lru_cache(maxsize=1024)
def takes_schedule(engine: str, version: str, method: str) -> bool:
    """True if that release is known to take a depth by load with the method."""
    known = load_method_support().schedules
    since = next((one.since for one in known if one.engine == engine and method in one.methods), None)
    return since is not None and parse_range(f">={since}").contains(version) is Truth.YES


def _older(version: str, since: str | None) -> bool:
    return since is not None and parse_range(f"<{since}").contains(version) is Truth.YES
