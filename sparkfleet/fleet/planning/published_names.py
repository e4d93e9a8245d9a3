"""Names of the Hub that the knowledge has, against those that are only like them: a typo must not be planned as a model."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import SparkfleetError
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.models.known_models import MODELS, config_name, globs_of, quant_in_name
from sparkfleet.knowledge.models.model_names import matches
from sparkfleet.knowledge.models.published_checkpoints import load_published
from sparkfleet.specs.model_name import base_name
from sparkfleet.staging.errors import ModelAbsent, ModelNotShown

_PLANNED_ID = re.compile(r"(?i)(?!.*(?:gguf|exl3))[\w.-]+/[\w.-]+")
"""A Hub id in a format that can be planned."""

_ANY = re.compile(r"[*?]")
ANY_EDITS, OWNERS_EDITS = 1, 2
"""Letters by which a name may differ from a known one to be taken for a typo; the second of the same owner and size."""
_SIZE = re.compile(r"(?<![a-z0-9.])[ae]?\d+(?:\.\d+)?b(?![a-z])")
"""A number of parameters in a name in small letters: another size is another model."""
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
    ids = _known_ids()
    return [ids[one] for one in get_close_matches(name.lower(), ids, n=3, cutoff=0.6)]


@lru_cache(maxsize=1)
def _known_ids() -> dict[str, str]:
    """The Hub ids that can be planned, by themselves in small letters."""
    globs = (glob for known in MODELS.content.models for glob in known.match)
    names = (*(one.id for one in load_published().values()), *architectures(), *globs)
    return {one.lower(): one for one in names if _PLANNED_ID.fullmatch(one)}


def misspelt_line(known: Checkpoint) -> str | None:
    """The warning of a plan by a pattern whose name is nearly a known one; None without that doubt.

    Such a name is planned all the same: a new release is as near to the former one.
    """
    name = base_name(known.id)
    meant = probably_meant(name) if (known.origin or "").startswith(BY_PATTERN) else ()
    if not meant:
        return None
    commands = " or ".join(f"`sparkfleet plan {one}`" for one in meant)
    return (
        f"warning: {name} is no known name, and the Hub has not confirmed it: the shapes of {config_name(name)} are assumed."
        f" Did you mean {commands}?"
    )


def probably_meant(name: str) -> tuple[str, ...]:
    """The known names that a name is one edit away from, or two from those of the same owner and sizes; () if there is none,
    or if the pattern that it is known by names what differs."""
    small = name.lower()
    distances = {one: edit_distance(small, one) for one in _known_ids()}
    least = min(distances.values(), default=0)
    nearest = [
        one for one, edits in distances.items() if edits == least and 0 < least <= _most_edits(small, one)
    ]
    globs = globs_of(name)
    return tuple(_known_ids()[one] for one in nearest if all(_fits_both(glob, small, one) for glob in globs))


def _most_edits(name: str, other: str) -> int:
    return OWNERS_EDITS if _owner_and_sizes(name) == _owner_and_sizes(other) else ANY_EDITS


def _owner_and_sizes(name: str) -> tuple[str, list[str]]:
    return name.partition("/")[0], _SIZE.findall(name)


def _fits_both(glob: str, name: str, meant: str) -> bool:
    """True if the parts of a pattern without wildcards are in both names."""
    parts = [part for part in _ANY.split(glob.lower()) if part]
    return all(part in meant for part in parts if part in name)


def edit_distance(first: str, second: str) -> int:
    """Letters to insert, delete, replace, or exchange with their neighbours until one text is the other."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first):
        following = [i + 1]
        for j, other in enumerate(second):
            least = min(row[j + 1] + 1, following[j] + 1, row[j] + (letter != other))
            if i and j and letter == second[j - 1] and other == first[i - 1]:
                least = min(least, before[j - 1] + 1)
            following.append(least)
        before, row = row, following
    return row[-1]


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
