"""Facts about all figures of one source, beside what its rows say: `knowledge/measurements/harnesses.yaml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml
from pydantic import ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.perf.workload import Content, Window
from sparkfleet.values import Value


class Harness(Value):
    """Facts about all figures of one source; None: its rows say it themselves."""

    source: str
    """`owner/repo`, or the host of a page."""
    words: str = ""
    """A word of the notes of the rows that this is true of; "": of all."""
    nodes: int = 1
    """Fewest nodes of the runs that this is true of."""
    window: Window | None = None
    content: Content | None = None
    """Kind of text that is asked for."""
    requests: int | None = None
    """How many requests come in all."""
    depth_cached: bool | None = None
    """The tokens before the prompt are in the cache."""
    eager: bool = False
    """The engine runs without CUDA graphs."""


@cache
def harnesses() -> tuple[Harness, ...]:
    """The entries of `harnesses.yaml`.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    text = files("sparkfleet.knowledge.measurements").joinpath("harnesses.yaml").read_text(encoding="utf-8")
    try:
        entries = yaml.safe_load(text)["harnesses"]
        return tuple(Harness.model_validate(entry, strict=False) for entry in entries)
    except (yaml.YAMLError, ValidationError, KeyError, TypeError) as error:
        raise SpecError(f"knowledge/measurements/harnesses.yaml: {error}") from error


def harness_of(source: str, nodes: int, notes: str) -> Harness:
    """Facts about the figures of a source that were measured on so many nodes and have such notes."""
    found = (one for one in harnesses() if one.source == source and nodes >= one.nodes and one.words in notes)
    return next(found, Harness(source=source))
