"""Bits per weight as stored, by part of published checkpoints: `stored_bits.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import yaml
from pydantic import Field, Strict, ValidationError

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import SpecError
from sparkfleet.values import Value


class StoredBits(Value):
    """Published bits per weight of one checkpoint, scales included."""

    id: str
    """Hub id."""
    bits: dict[Annotated[Part, Strict(False)], Annotated[float, Field(ge=1, le=32)]]
    certainty: Literal["read", "computed", "inferred"]
    sources: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """True if every part that a decode step reads most of is listed."""
        return {Part.ATTENTION, Part.HEAD} <= self.bits.keys() and bool(
            {Part.MLP, Part.EXPERTS} & self.bits.keys()
        )


@cache
def stored_bits() -> Mapping[str, StoredBits]:
    """The entries of `stored_bits.yaml` by Hub id in lower case.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    text = files("sparkfleet.knowledge").joinpath("stored_bits.yaml").read_text(encoding="utf-8")
    try:
        entries = yaml.safe_load(text)["checkpoints"]
        found = [StoredBits.model_validate(entry, strict=False) for entry in entries]
    except (yaml.YAMLError, ValidationError, KeyError, TypeError) as error:
        raise SpecError(f"knowledge/stored_bits.yaml: {error}") from error
    return {one.id.lower(): one for one in found}


def stored_as(model: str) -> StoredBits | None:
    """The published bits of a checkpoint by its Hub id, letter case aside; None if none are known."""
    return stored_bits().get(model.partition("@")[0].lower())


ALIKE, CONTRADICTS = 0.03, 0.07
"""Published size over the sum of the published bits: up to 3 % apart all parts are scaled (blocks, padding), up to 7 % the
rest is a tower or a head that the shapes do not have, beyond that it is the size of another build."""


def with_stored_bits(checkpoint: Checkpoint, known: StoredBits, total: float | None = None) -> Checkpoint:
    """The same weights with the published bits; parts that are not listed keep their estimate.

    Args:
        checkpoint: weights as estimated.
        known: their bits.
        total: published size of all of them, bytes.
    """
    exact = _rescaled(checkpoint, known.bits)
    if total is None:
        return exact
    if not known.whole:
        return exact.sized(total)
    apart = abs(total / exact.bytes_on_disk - 1)
    if apart > CONTRADICTS:
        return checkpoint.sized(total)
    if apart > ALIKE:
        return exact
    factor = total / exact.bytes_on_disk
    bits = {one.part: factor * 8 * one.bytes / one.parameters for one in exact.weights if one.parameters}
    return _rescaled(exact, bits)


def _rescaled(checkpoint: Checkpoint, bits: Mapping[Part, float]) -> Checkpoint:
    weights = tuple(
        one.model_copy(update={"bytes": round(one.parameters * bits[one.part] / 8)})
        if one.part in bits
        else one
        for one in checkpoint.weights
    )
    size = sum(one.bytes for one in weights)
    return checkpoint.model_copy(update={"weights": weights, "bytes_on_disk": size})
