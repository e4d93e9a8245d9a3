"""Checkpoints that make draft tokens: their shapes or their size, by facts, publications or their name."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from sparkfleet.knowledge.models.known_models import checkpoint_if_known, quant_in_name
from sparkfleet.knowledge.models.speculators import speculator_with
from sparkfleet.perf.draft_methods import speed_method
from sparkfleet.perf.model_shape import BF16_BITS, ModelShape, from_checkpoint, from_counts
from sparkfleet.perf.prediction import Speculation
from sparkfleet.units import GB

BITS_IN_NAME = (("fp4", 4.5), ("int4", 4.3), ("awq", 4.3), ("fp8", 8.0), ("int8", 8.0))
"""Bits per weight by the quantisation in a name, scales included."""


class Drafter(NamedTuple):
    """Facts about a checkpoint that produces draft tokens."""

    shape: ModelShape | None = None
    """Its shapes; None: layers as such drafters have them, or none of its own."""
    size: float | None = None
    """Bytes of its weights, if they are published and its shapes are not."""
    assumed: str = ""
    """Assumptions about its size, with the reason; "" if there are none."""


def pass_bytes(speculation: Speculation) -> float | None:
    """Published weights of a separate MTP drafter, bytes; a pass reads all of them, its embedding as its head."""
    if speculation.draft is None or speed_method(speculation.method) != "mtp":
        return None
    published = speculator_with(speculation.draft)
    return None if published is None or published.gb is None else published.gb * GB


@lru_cache(maxsize=64)
def drafter_by_name(method: str, name: str) -> Drafter:
    """Reads a drafter's name: published shapes, or a size ("8B"). A head's name is its target's, and gives neither."""
    published = speculator_with(name)
    if published is not None and published.gb is not None:
        return Drafter(size=published.gb * GB)
    if method != "draft":
        return Drafter(
            None, assumed=f"the size of {name} is not known: assumed typical for this kind of draft head"
        )
    known = checkpoint_if_known(name)
    if known is not None:
        return Drafter(from_checkpoint(known))
    size = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", name.rpartition("/")[2].lower())
    if size is None:
        return Drafter(
            None, assumed=f"the size of {name} is not known: taken to be one layer as wide as the model's"
        )
    billions = float(size[1]) * (1.0 if size[2] == "b" else 1e-3)
    quant = quant_in_name(name) or ""
    bits = next((bits for word, bits in BITS_IN_NAME if word in quant), BF16_BITS)
    guess = from_counts(name, billions, billions, bits=bits, basis="its name")
    return Drafter(guess, assumed=f"the size of {name} is not known: taken from its name")
