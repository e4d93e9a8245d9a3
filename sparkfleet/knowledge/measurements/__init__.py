"""Published measurements and architecture facts, each with its source: what the factors were fitted to.

    benchmarks.csv    one row per published measurement; `scripts/fit.py` reads it
    configs.json      facts of config.json files by model name, for rows that name a model only
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from sparkfleet.errors import SpecError


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
