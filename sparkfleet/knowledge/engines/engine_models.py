"""Architectures that each engine loads, by release: `architectures.yaml`, checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, Literal

from pydantic import Field

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.versions import Truth, parse_range
from sparkfleet.knowledge.yaml_entries import Date, entries, packaged, parse
from sparkfleet.values import Value

FILE = "engines/architectures.yaml"

Engine = Literal["vllm", "sglang", "trtllm"]

Loading = Literal["listed", "absent", "unproven", "unknown"]
"""listed: the registry of the release has it (for TensorRT-LLM: NVIDIA's lists for a Spark). absent: the registry of that
release lacks it, and a later one has it. unproven: none of the lists read has it. unknown: an architecture that is in no
list, or a release that was not read."""


class Architecture(Value):
    """One class of models, and the releases that load it."""

    id: str
    """Class name, as in `architectures` of config.json."""
    model_types: Annotated[tuple[str, ...], Field(min_length=1)]
    since: dict[Engine, str] = Field(alias="from")
    """Engine → first release whose list has it; "any": the first list that was read."""
    date: Date


class EngineModels(Value):
    """Contents of `architectures.yaml`."""

    sources: dict[Engine, str]
    read: dict[Engine, tuple[str, ...]]
    """Releases whose lists were read, oldest first."""
    architectures: tuple[Architecture, ...]


@cache
def load_engine_models() -> EngineModels:
    """The packaged lists.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return read_engine_models(packaged(FILE))


def read_engine_models(text: str, name: str = FILE) -> EngineModels:
    """The lists in `text`.

    Raises:
        SpecError: something is wrong; `what` names file, architecture and field.
    """
    data = parse(name, text, frozenset({"sources", "read", "architectures"}))
    read = _by_engine(name, data["read"], "read")
    found = entries(name, "architectures", data["architectures"], Architecture)
    for one in found:
        for engine, release in one.since.items():
            if release != "any" and release not in read[engine]:
                raise SpecError(
                    f"knowledge/{name}: {one.id}: from.{engine}: {release} is not in read.{engine}"
                )
    sources = _by_engine(name, data["sources"], "sources")
    return EngineModels.model_validate({"sources": sources, "read": read, "architectures": found})


def _by_engine(name: str, section: object, called: str) -> Mapping[str, tuple[str, ...] | str]:
    if not isinstance(section, dict) or set(section) != {"vllm", "sglang", "trtllm"}:
        raise SpecError(f"knowledge/{name}: {called}: expected vllm, sglang and trtllm")
    return {key: tuple(value) if isinstance(value, list) else str(value) for key, value in section.items()}


@lru_cache(maxsize=1024)
def loading(engine: str, version: str | None, model_type: str | None) -> Loading:
    """Support of an engine's release for a type of models.

    Args:
        engine: "vllm", "sglang" or "trtllm"; others are unknown.
        version: of the engine; None or "" if it is not known: then any release that was read counts.
        model_type: that of config.json.

    Returns:
        "unknown" about an architecture that is in no list, and about releases that are older than those that were read, or
        between one that lists it and one that does not.
    """
    known = load_engine_models()
    one = next((one for one in known.architectures if model_type in one.model_types), None)
    if one is None or engine not in ("vllm", "sglang", "trtllm"):
        return "unknown"
    since = next((release for name, release in one.since.items() if name == engine), None)
    if since is None:
        return "unproven"
    if not version:
        return "listed"
    releases = next(releases for name, releases in known.read.items() if name == engine)
    at = 0 if since == "any" else releases.index(since)
    if _holds(version, f">={releases[at]}"):
        return "listed"
    return "absent" if at and _holds(version, f"<={releases[at - 1]}") else "unknown"


def _holds(version: str, wanted: str) -> bool:
    return parse_range(wanted).contains(version) is Truth.YES
