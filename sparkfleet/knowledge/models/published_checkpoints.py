"""Contents of published checkpoints' files, part by part: `checkpoints.yaml`, checked on load.

A plan by name takes the shapes from a config and the bits of each part from here, so that it needs neither the weights nor
a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from sparkfleet.checkpoints.arch.weight_parts import Part, Portion
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.io.licenses import License, license_class
from sparkfleet.checkpoints.quantization.formats import (
    Cover,
    Quantization,
    Scheme,
    fp8,
    integer,
    mxfp4,
    mxfp8,
    nvfp4,
)
from sparkfleet.checkpoints.sizes.vision_tower import is_multimodal
from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries
from sparkfleet.specs.model_name import base_name
from sparkfleet.values import Value

PublishedPart = Literal[
    "attention", "linear_attention", "mlp", "experts", "shared_experts", "router", "embedding", "ngram",
    "head", "vision", "mtp",
]  # fmt: skip

Bits = Annotated[float, Field(gt=1, le=16)]

STORED_AS: Mapping[str, str] = {
    "bf16": "BF16",
    "fp8": "F8_E4M3",
    "mxfp8": "F8_E4M3",
    "int8": "I8",
    "int4": "I32",
}
"""Format → dtype in the safetensors header; 4-bit floats are packed in U8."""

METHODS: Mapping[str, str] = {
    "fp8": "fp8",
    "mxfp8": "modelopt",
    "nvfp4": "modelopt",
    "mxfp4": "mxfp4",
    "int4": "compressed-tensors",
    "int8": "compressed-tensors",
}
"""Format → method, of a checkpoint whose known config declares none."""

LEAST_BITS, MOST_BITS = 3.5, 16.5
"""Bits per parameter of unpublished parts, if these account for the rest of a published size."""

MOST_BYTES = 1e15
"""Larger than any checkpoint."""
MOST_TOWER_BYTES = 3e9
"""Largest vision tower that a published size may contain beside the language model."""


class PublishedCheckpoint(Value):
    """One repository of weights."""

    id: str
    architecture: str
    """Class name of its config.json."""
    of: str = ""
    """Hub id of the model that it is a copy of, if its own name without the format is another; "" if it is not."""
    bytes: Annotated[int, Field(gt=0)] | None = None
    """Of the weight files; None: not published."""
    bits: dict[PublishedPart, Bits] = Field(default_factory=dict)
    """Stored bits per weight of each part, scales included; a part that is missing is not known."""
    fp8_block: Annotated[int, Field(gt=0)] | None = None
    """Rows and columns that share a scale in its parts of 8 bits; None: not published, or a scale per tensor or channel."""
    activations: Literal["w4a16", "w4a4"] | None = None
    """Of the 4-bit parts: weights only, or both; None: not published."""
    kv_cache: Literal["fp8"] | None = None
    """The KV-cache dtype that its quantisation config declares."""
    license: str = ""
    mtp: Annotated[int, Field(ge=0)] | None = None
    """Layers of multi-token prediction in the files; None: not known."""
    certainty: Literal["read", "computed", "inferred"] | None = None
    """Of `bits`, for those who correct an entry: no plan depends on it."""
    sources: Sources
    date: Date

    def stored(self, checkpoint: Checkpoint) -> Checkpoint:
        """`checkpoint`, which has the right shapes, with its parts stored as published."""
        kept = tuple(one for one in checkpoint.weights if self.mtp != 0 or one.part is not Part.MTP)
        weights = tuple(one for part in Part for one in self._part(part, kept, checkpoint))
        if self.bytes is not None:
            weights = _filled(weights, self.bytes, {Part(part) for part in self.bits if part != "ngram"})
        changes: dict[str, object] = {
            "weights": weights,
            "bytes_on_disk": sum(one.bytes for one in weights),
            "quantization": self._quantization(checkpoint.quantization),
        }
        if self._has_tower:
            changes["declares_vision"] = True
        if self.mtp is not None:
            changes["mtp_layers"] = self.mtp
        if self.license:
            known = License(id=self.license, kind=license_class(self.license), source=CHECKPOINTS.name)
            changes["license"] = known
        return checkpoint.model_copy(update=changes)

    @property
    def _has_tower(self) -> bool:
        """True if a vision tower is published of it, or its class is that of a multimodal model."""
        return "vision" in self.bits or is_multimodal(self.architecture)

    def _part(self, part: Part, weights: tuple[Portion, ...], checkpoint: Checkpoint) -> Iterator[Portion]:
        portions = [one for one in weights if one.part is part]
        bits = _of(self.bits, part)
        parameters = sum(one.parameters for one in portions)
        table = max(0, parameters - checkpoint.vocab_size * checkpoint.hidden_size)
        beside = self.bits.get("ngram") if part is Part.EMBEDDING and table else None
        if beside is not None:
            yield _portion(part, table, beside)
            parameters -= table
            bits = bits or 16
        if not parameters:
            return
        if bits is None:
            yield from portions
        else:
            yield _portion(part, parameters, bits)

    def _quantization(self, declared: Quantization | None) -> Quantization | None:
        schemes = {part: scheme for part in Part if (scheme := self._scheme(part)) is not None}
        main = schemes.get(Part.EXPERTS) or schemes.get(Part.MLP)
        if declared is None and main is not None:
            declared = Quantization(method=METHODS[main.format], scheme=main)
        if declared is None or not self.bits:
            return _with_kv(declared, self.kv_cache)
        listed = {Part(part) for part in self.bits if part != "ngram"}
        covers = tuple(cover for cover in declared.covers if cover.part not in listed)
        covers += tuple(self._cover(part, scheme, declared) for part, scheme in schemes.items())
        # Of several formats the declared one stays the main one: DeepSeek-V4 is FP8 with experts in MXFP4.
        alike = next((one for one in schemes.values() if one.format == declared.scheme.format), None)
        changes = {"covers": covers, "scheme": alike or main or declared.scheme}
        return _with_kv(declared.model_copy(update=changes), self.kv_cache)

    def _cover(self, part: Part, scheme: Scheme, declared: Quantization) -> Cover:
        """The part in its published format: if that is FP8 whose blocks are not published, in those that are declared."""
        blocks = (one for one in declared.covers if one.part is part and one.scheme and one.scheme.block)
        known = next(blocks, None) if scheme.format == "fp8" and scheme.block is None else None
        return (
            known.model_copy(update={"share": 1.0}) if known else Cover(part=part, scheme=scheme, share=1.0)
        )

    def _scheme(self, part: Part) -> Scheme | None:
        bits = _of(self.bits, part)
        scheme = None if bits is None else scheme_of_bits(bits, weights_only=self.activations == "w4a16")
        if scheme is None or scheme.format != "fp8" or not self.fp8_block:
            return scheme
        return fp8(block=(self.fp8_block, self.fp8_block))


def _of(bits: Mapping[PublishedPart, float], part: Part) -> float | None:
    return {str(name): value for name, value in bits.items()}.get(part.value)


def _with_kv(quantization: Quantization | None, kv_cache: str | None) -> Quantization | None:
    if quantization is None or kv_cache is None:
        return quantization
    return quantization.model_copy(update={"kv_cache": kv_cache})


def scheme_of_bits(bits: float, *, weights_only: bool = False) -> Scheme | None:
    """The format with so many bits per weight, scales included; for a mean of several, the smallest of them.

    Args:
        bits: per weight, as in `checkpoints.yaml`.
        weights_only: multiply 4-bit floats in 16 bits.
    """
    known = (
        (4.2, integer(4, 128)),
        (4.4, mxfp4()),
        (7.9, nvfp4(activations="bf16" if weights_only else "nvfp4")),
        (8.05, fp8()),
        (8.2, integer(8, 128)),
        (15.9, mxfp8()),
    )
    return next((scheme for most, scheme in known if bits <= most), None)


def _portion(part: Part, parameters: int, bits: float) -> Portion:
    scheme = scheme_of_bits(bits)
    name = scheme.format if scheme else "bf16"
    size = round(parameters * bits / 8)
    return Portion(part=part, dtype=STORED_AS.get(name, "U8"), format=name, parameters=parameters, bytes=size)


def _filled(weights: tuple[Portion, ...], total: int, listed: set[Part]) -> tuple[Portion, ...]:
    """The same weights with `total` bytes: unpublished parts change first, then a tower is added, then all parts change."""
    estimated = sum(one.bytes for one in weights)
    if not 0 < estimated < MOST_BYTES:
        return weights  # a config that describes no such model
    left = total - estimated
    soft = [one for one in weights if one.part not in listed]
    parameters, size = sum(one.parameters for one in soft), sum(one.bytes for one in soft)
    if parameters and LEAST_BITS <= 8 * (size + left) / parameters <= MOST_BITS:
        sized = iter(_sized(soft, size + left))
        return tuple(one if one.part in listed else next(sized) for one in weights)
    towerless = all(one.part is not Part.VISION for one in weights)
    if Part.VISION in listed and towerless and 0 < left <= MOST_TOWER_BYTES:
        tower = Portion(part=Part.VISION, dtype="BF16", format="bf16", parameters=left // 2, bytes=left)
        return (*weights, tower)
    return tuple(one.scaled(total / (total - left)) for one in weights)


def _sized(portions: list[Portion], total: int) -> list[Portion]:
    """The portions with `total` bytes together, scaled by one factor; none gets more than MOST_BITS per parameter."""
    rest, free = float(total), list(portions)
    capped: dict[int, Portion] = {}
    while free:
        factor = rest / sum(one.bytes for one in free)
        above = [one for one in free if 8 * factor * one.bytes > MOST_BITS * one.parameters]
        if not above or len(above) == len(free):
            break
        for one in above:
            capped[id(one)] = one.model_copy(update={"bytes": round(MOST_BITS * one.parameters / 8)})
            rest -= capped[id(one)].bytes
        free = [one for one in free if id(one) not in capped]
    return [capped.get(id(one)) or one.scaled(factor) for one in portions]


class PublishedCheckpoints(Value):
    """Contents of the file, in its order."""

    checkpoints: UniqueEntries[PublishedCheckpoint]


CHECKPOINTS = DataFile("models/checkpoints.yaml", PublishedCheckpoints)


@cache
def load_published() -> Mapping[str, PublishedCheckpoint]:
    """All published checkpoints by their Hub id in small letters."""
    return {one.id.lower(): one for one in CHECKPOINTS.content.checkpoints}


def published(model: str) -> PublishedCheckpoint | None:
    """The published contents of a checkpoint by its Hub id, without its revision; None if there are none."""
    return load_published().get(base_name(model).lower())
