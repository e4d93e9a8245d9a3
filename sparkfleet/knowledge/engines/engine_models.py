"""Architectures that each engine loads, by release: `architectures.yaml`, checked on load."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from sparkfleet.knowledge.data_file import DataFile, Date, UniqueEntries
from sparkfleet.knowledge.versions import is_within
from sparkfleet.specs.deployment import PlannedEngine
from sparkfleet.values import Value

Loading = Literal["listed", "absent", "unproven", "unknown"]
"""listed: the registry of the release has it (for TensorRT-LLM: NVIDIA's lists for a Spark; for llama.cpp: its own names,
and the classes that it converts). absent: the registry of that
release lacks it, and a later one has it. unproven: none of the lists read has it. unknown: a release that was not read,
or no architecture was given."""


class Architecture(Value):
    """One class of models, and the releases that load it."""

    id: str
    """Class name, as in `architectures` of config.json."""
    model_types: Annotated[tuple[str, ...], Field(min_length=1)]
    since: dict[PlannedEngine, str] = Field(alias="from")
    """Engine → first release whose list has it; "any": the first list that was read."""
    least: dict[PlannedEngine, str] = Field(default_factory=dict)
    """Engine → first release that loads it by its recipe, if that was before the lists that were read."""
    date: Date


class EngineModels(Value):
    """Contents of `architectures.yaml`."""

    sources: dict[PlannedEngine, str]
    read: dict[PlannedEngine, tuple[str, ...]]
    """Releases whose lists were read, oldest first."""
    others: dict[PlannedEngine, tuple[str, ...]]
    """Further classes that all these releases list; of llama.cpp also the names by which GGUF files call architectures."""
    architectures: UniqueEntries[Architecture]

    @model_validator(mode="after")
    def _releases_read(self) -> EngineModels:
        if set(self.read) != set(get_args(PlannedEngine)):
            raise ValueError(f"read: expected {', '.join(get_args(PlannedEngine))}")
        for one in self.architectures:
            for engine, release in one.since.items():
                if release != "any" and release not in self.read[engine]:
                    raise ValueError(f"{one.id}: from.{engine}: {release} is not in read.{engine}")
        return self


ENGINE_MODELS = DataFile("engines/architectures.yaml", EngineModels)


@lru_cache(maxsize=1024)
def loading(
    engine: str, version: str | None, model_type: str | None, architecture: str | None = None
) -> Loading:
    """Support of an engine's release for a type of models.

    Args:
        engine: of `PlannedEngine`; others are unknown.
        version: of the engine; None or "" if it is not known: then any release that was read counts.
        model_type: that of config.json, or the name of the architecture in a GGUF file.
        architecture: its class there, for types that have no entry of their own.

    Returns:
        "unknown" about releases that are older than those that were read, or between one that lists it and one that does
        not.
    """
    known = ENGINE_MODELS.content
    if engine not in known.read or not (model_type or architecture):
        return "unknown"
    one = next((one for one in known.architectures if model_type in one.model_types), None)
    if one is None:
        return _other(engine, version, (architecture, model_type))
    return _entered(one, engine, version)


def _entered(one: Architecture, engine: str, version: str | None) -> Loading:
    """Support for an architecture that has an entry."""
    known = ENGINE_MODELS.content
    since = next((release for name, release in one.since.items() if name == engine), None)
    if since is None:
        return "unproven"
    if not version:
        return "listed"
    least = next((release for name, release in one.least.items() if name == engine), None)
    if least is not None and is_within(version, f"<{least}"):
        return "absent"
    releases = next(releases for name, releases in known.read.items() if name == engine)
    at = 0 if since == "any" else releases.index(since)
    if is_within(version, f">={releases[at]}"):
        return "listed"
    return "absent" if at and is_within(version, f"<={releases[at - 1]}") else "unknown"


def _other(engine: str, version: str | None, names: tuple[str | None, ...]) -> Loading:
    """Support for an architecture without an entry of its own: all releases that were read list it, or none."""
    known = ENGINE_MODELS.content
    listed = next((classes for name, classes in known.others.items() if name == engine), ())
    if not any(name in listed for name in names):
        return "unproven"
    first = next(releases[0] for name, releases in known.read.items() if name == engine)
    return "listed" if not version or is_within(version, f">={first}") else "unknown"


@lru_cache(maxsize=1024)
def earliest(engine: str | None, model_type: str | None) -> str | None:
    """The oldest release whose builds may load a type of models; None if the lists give none.

    For an architecture that a release was the first to list, the one read before it: builds between the two may have it.
    """
    known = ENGINE_MODELS.content
    one = next((one for one in known.architectures if model_type in one.model_types), None)
    if one is None:
        return None
    if least := next((release for name, release in one.least.items() if name == engine), None):
        return least
    since = next((release for name, release in one.since.items() if name == engine), "any")
    releases = next((releases for name, releases in known.read.items() if name == engine), ())
    return releases[releases.index(since) - 1] if since in releases[1:] else None
