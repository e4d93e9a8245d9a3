"""Published measurements and architecture facts, each with its source: the input of the fit.

benchmarks.csv    one row per published measurement; `scripts/fit.py` reads it
configs.json      facts of config.json files by model name, for rows with a model's name only
siblings.yaml     fine-tunes and requantised checkpoints → the entry with the same shapes
harnesses.yaml    facts about all figures of a source: how its harness counts, how its engine was started
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.data_file import DataFile
from sparkfleet.values import Value

BENCHMARKS = Path(__file__).parent / "benchmarks.csv"
"""The published measurements."""


@cache
def architectures() -> Mapping[str, Mapping[str, object]]:
    """Facts of `config.json` by model name; `_aliases` maps names of siblings to names of entries.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    text = files("sparkfleet.knowledge.measurements").joinpath("configs.json").read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SpecError(f"knowledge/measurements/configs.json: {error}") from error
    return {str(name): entry for name, entry in found.items() if isinstance(entry, dict)}


class Sibling(Value):
    """A pattern of published names, and the entry of `architectures` with their shapes."""

    name: str
    shapes: str


class Siblings(Value):
    """Contents of `siblings.yaml`, in the order to try."""

    siblings: tuple[Sibling, ...]


SIBLINGS = DataFile("measurements/siblings.yaml", Siblings)


def siblings() -> tuple[tuple[str, str], ...]:
    """(pattern of a published name, entry of `architectures` with its shapes), in the order to try."""
    return tuple((one.name, one.shapes) for one in SIBLINGS.content.siblings)
