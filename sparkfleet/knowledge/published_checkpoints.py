"""Sizes, licences and heads of published checkpoints: `checkpoints.yaml`, checked on load.

A plan by name takes the shapes from a config, the bits of each part from `stored_bits.yaml` and the rest from here: it needs
neither the weights nor a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from sparkfleet.checkpoints.arch.weight_parts import Part, Portion
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.io.licenses import License, license_class
from sparkfleet.knowledge.yaml_entries import Date, Sources, entries, packaged, parse
from sparkfleet.values import Value

FILE = "checkpoints.yaml"

MOST_TOWER_BYTES = 3e9
"""The largest vision tower that a published size is taken to hold; those of published models have at most 0.6 billion
parameters (Gemma 4 26B and 31B: 0.55), in 16 bits."""


class PublishedCheckpoint(Value):
    """One repository of weights."""

    id: str
    architecture: str
    """Class name of its config.json."""
    bytes: Annotated[int, Field(gt=0)] | None = None
    """Of the weight files; None: not published, or contradicted by who served it."""
    activations: Literal["w4a16", "w4a4"] | None = None
    """Of the 4-bit parts: weights only, or both; None: not published."""
    kv_cache: Literal["fp8"] | None = None
    """The KV-cache dtype that its quantisation config declares."""
    license: str = ""
    mtp: Annotated[int, Field(ge=0)] | None = None
    """Layers of multi-token prediction in the files; None: not known."""
    sources: Sources
    date: Date

    def described(self, checkpoint: Checkpoint) -> Checkpoint:
        """`checkpoint`, which has the right shapes, with the heads and the licence that are published."""
        changes: dict[str, object] = {}
        if self.mtp is not None:
            changes["mtp_layers"] = self.mtp
        if self.mtp == 0:
            weights = tuple(one for one in checkpoint.weights if one.part is not Part.MTP)
            changes |= {"weights": weights, "bytes_on_disk": sum(one.bytes for one in weights)}
        if self.license:
            kind = license_class(self.license)
            changes["license"] = License(id=self.license, kind=kind, source=f"knowledge/{FILE}")
        return checkpoint.model_copy(update=changes)

    def with_tower(self, checkpoint: Checkpoint) -> Checkpoint:
        """`checkpoint` with a vision tower of what its published size leaves over beside the language model."""
        left = (self.bytes or 0) - checkpoint.bytes_on_disk
        sees = self.architecture.endswith("ForConditionalGeneration")
        if not sees or not 0 < left <= MOST_TOWER_BYTES or Part.VISION in checkpoint.parameters_by_part():
            return checkpoint
        tower = Portion(part=Part.VISION, dtype="BF16", format="bf16", parameters=left // 2, bytes=left)
        changes = {"weights": (*checkpoint.weights, tower), "bytes_on_disk": checkpoint.bytes_on_disk + left}
        return checkpoint.model_copy(update=changes)


@cache
def load_published() -> Mapping[str, PublishedCheckpoint]:
    """All published checkpoints by their Hub id in small letters, in the order of the file.

    Raises:
        SpecError: the file was edited and is no longer valid.
    """
    return {one.id.lower(): one for one in read_published(packaged(FILE))}


def read_published(text: str, name: str = FILE) -> tuple[PublishedCheckpoint, ...]:
    """The published checkpoints in `text`.

    Raises:
        SpecError: something is wrong; `what` names file, checkpoint and field.
    """
    return entries(
        name, "checkpoints", parse(name, text, frozenset({"checkpoints"}))["checkpoints"], PublishedCheckpoint
    )


def published(model: str) -> PublishedCheckpoint | None:
    """The entry of a checkpoint by its Hub id, a revision aside; None if there is none."""
    return load_published().get(model.partition("@")[0].lower())
