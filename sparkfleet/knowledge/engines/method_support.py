"""Speculative methods by engine and release: `method_support.yaml`, checked on load.

support_of(engine, method)        the engine's name for it and its conditions; None: it has no such method
lacks(engine, version, method)    the release is known to be too old for it
takes_schedule(engine, version, method)   it takes one depth alone and another under load
counts_beam(version)              SGLang's release may count the draft tokens of a beam itself
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries
from sparkfleet.knowledge.versions import is_within
from sparkfleet.specs.deployment import Method, PlannedEngine
from sparkfleet.values import Value

COUNTS_BEAM = "0.5.12"
"""SGLang's release of which one build takes a beam without its number of draft tokens (field report 000). Others end in a
TypeError: `max(top-k * steps, None)` (0.5.12.post1 to 0.5.23)."""


class MethodSupport(Value):
    """A speculative method of an engine."""

    id: str
    engine: PlannedEngine
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
    engine: PlannedEngine
    methods: tuple[Method, ...]
    since: str
    note: str = ""
    sources: Sources
    date: Date


class SpeculativeEngines(Value):
    """Contents of the file."""

    methods: UniqueEntries[MethodSupport]
    schedules: UniqueEntries[DepthSchedule]


METHOD_SUPPORT = DataFile("engines/method_support.yaml", SpeculativeEngines)


@lru_cache(maxsize=128)
def support_of(engine: str, method: str) -> MethodSupport | None:
    """A method on an engine; None if the engine has no such method."""
    known = METHOD_SUPPORT.content.methods
    return next((one for one in known if (one.engine, one.method) == (engine, method)), None)


def names_of(engine: str) -> dict[str, str]:
    """The methods of an engine, each with the engine's own name for it."""
    return {one.method: one.name for one in METHOD_SUPPORT.content.methods if one.engine == engine}


@lru_cache(maxsize=1024)
def lacks(engine: str, version: str, method: str) -> bool:
    """True if that release is older than the first that has the method. False for a version that cannot be ordered."""
    support = support_of(engine, method)
    if support is None:
        return True
    return support.since is not None and is_within(version, f"<{support.since}")


@lru_cache(maxsize=1024)
def takes_schedule(engine: str, version: str, method: str) -> bool:
    """True if that release is known to take a depth by load with the method."""
    known = METHOD_SUPPORT.content.schedules
    since = next((one.since for one in known if one.engine == engine and method in one.methods), None)
    return since is not None and is_within(version, f">={since}")


def counts_beam(version: str) -> bool:
    """True if a build of that release of SGLang takes a beam without its number of draft tokens, which others require."""
    return version.split()[:1] == [COUNTS_BEAM]
