"""Names of the Hub that the knowledge has, against those that are only like them: a typo must not be planned as a model."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import SparkfleetError
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.known_models import MODELS, config_name, quant_in_name
from sparkfleet.knowledge.models.model_names import matches
from sparkfleet.knowledge.models.published_checkpoints import load_published
from sparkfleet.staging.errors import ModelAbsent, ModelNotShown

_PLANNED_ID = re.compile(r"(?i)(?!.*(?:gguf|exl3))[\w.-]+/[\w.-]+")
"""A Hub id in a format that can be planned."""

_ANY = re.compile(r"[*?]")
BY_PATTERN = "known by the pattern"
_FORMAT_NAMES = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}
"""Names of a config's types, as a plan shows them."""


@lru_cache(maxsize=1)
def published_names() -> frozenset[str]:
    """Hub ids that the knowledge has by themselves, in small letters; alternatives in brackets stay patterns."""
    globs = (glob for known in MODELS.content.models for glob in known.match if not _ANY.search(glob))
    return frozenset(one.lower() for one in (*load_published(), *architectures(), *globs))


def is_published(name: str) -> bool:
    """True for a Hub id that the knowledge has by itself, not only by a pattern."""
    return name.lower() in published_names() or matches(
        name, (one for one in published_names() if "[" in one)
    )


def with_pattern(known: Checkpoint) -> Checkpoint:
    """A checkpoint that is known by name, with the pattern as its origin if its own name is not published."""
    if is_published(known.id):
        return known
    quantization = known.quantization
    stored = known.dtype if quantization is None else quantization.scheme.format
    kind = "format by its name" if quant_in_name(known.id) else "format assumed"
    shapes = config_name(known.id)
    origin = f"{BY_PATTERN} of {shapes} only; {kind}: {_FORMAT_NAMES.get(stored, stored.upper())}"
    return known.model_copy(update={"origin": origin})


def is_refuted(known: Checkpoint | None, reason: SparkfleetError) -> bool:
    """True if the Hub's refusal counts more than what the name is like.

    A published name may be missing at a mirror, and a private model of one's own is like a published one. Without a token
    the Hub refuses private names as it refuses wrong ones, so the owner decides: one that publishes models has
    none of that name.
    """
    if known is None:
        return isinstance(reason, (ModelAbsent, ModelNotShown))
    if is_published(known.id):
        return False
    owners = {one.partition("/")[0].lower() for one in published_names() if "/" in one}
    is_of_a_publisher = known.id.partition("/")[0].lower() in owners
    return isinstance(reason, ModelAbsent) or (isinstance(reason, ModelNotShown) and is_of_a_publisher)


def near(name: str) -> list[str]:
    """The known names that differ least from this one, letter case aside."""
    globs = (glob for known in MODELS.content.models for glob in known.match)
    names = (*(one.id for one in load_published().values()), *architectures(), *globs)
    ids = {one.lower(): one for one in names if _PLANNED_ID.fullmatch(one)}
    return [ids[one] for one in get_close_matches(name.lower(), ids, n=3, cutoff=0.6)]


def near_without_owner(name: str) -> list[str]:
    """The published models whose names without their owner differ least from this one, letter case aside; equal ones only,
    if there are any: of each owner."""
    ids: dict[str, list[str]] = {}
    for one in dict.fromkeys((*(one.id for one in load_published().values()), *architectures())):
        if _PLANNED_ID.fullmatch(one):
            ids.setdefault(one.rpartition("/")[2].lower(), []).append(one)
    if equal := ids.get(name.lower()):
        return equal
    return [ids[one][-1] for one in get_close_matches(name.lower(), ids, n=3, cutoff=0.75)]
