"""Published checkpoints in GGUF format: `ggufs.yaml`, checked on load, and the facts of one by its name.

    known_gguf(name)        facts for a plan before a download, sizes estimated; None if its shapes are not known
    ggufs_of(checkpoint)    those of the model of a checkpoint in another format

Shapes are those of the model's config; bits by part are those of the tag's format (`physics.yaml`), scaled to a
published size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

from pydantic import Field

from sparkfleet.checkpoints.arch.weight_parts import Part, Portion
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.checkpoints.quantization.formats import Quantization, Scheme
from sparkfleet.errors import FactError
from sparkfleet.knowledge.ceilings import Format, FormatPart, physics
from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries
from sparkfleet.knowledge.models.gguf_formats import format_of_tag, gguf_name, stem_of
from sparkfleet.specs.model_name import ModelName, model_name
from sparkfleet.units import gb
from sparkfleet.values import Value

BITS_OF_PART: dict[Part, FormatPart] = {
    Part.ATTENTION: "attention",
    Part.LINEAR_ATTENTION: "attention",
    Part.MLP: "mlp",
    Part.EXPERTS: "experts",
    Part.SHARED_EXPERTS: "shared",
    Part.ROUTER: "shared",
    Part.NORMS: "shared",
    Part.OTHER: "shared",
    Part.EMBEDDING: "embedding",
    Part.HEAD: "head",
    Part.MTP: "experts",
    Part.DRAFT: "experts",
}
"""The bits of `physics.yaml` that count for each part; a vision tower is a file of its own, in 16."""
WHOLE_PARTS = frozenset((Part.ROUTER, Part.NORMS))
"""Parts that stay in 32 bits whatever the quantisation (llama.cpp b11434: conversion/base.py)."""
SUPER_BLOCK = 256
"""Weights of one block of the K- and I-quants. Rows of another length keep a simpler format (llama-quant.cpp), so that all
quantisations of gpt-oss, whose rows have 2880, have its experts in the maker's MXFP4."""
EVEN = ("gguf-mxfp4",)
"""Formats whose parts all have one known precision. The rest of a published size is biases in 32 bits, which a token reads
of its own experts only, so that it counts for all parts alike."""
WHOLE_BITS = {"gguf2": 2, "gguf3": 3, "gguf4": 4, "gguf5": 5, "gguf6": 6, "gguf8": 8, "gguf-mxfp4": 4}
"""Formats of GGUF weights as checkpoints name them → bits per weight without scales."""


class PublishedGguf(Value):
    """One quantisation of a repository."""

    id: Annotated[str, Field(pattern=r"^[^\s:@/]+/[^\s:@/]+:[^\s:@/]+$")]
    """As deployments name it."""
    model: str
    """Hub id of the model that it was made of."""
    file: str
    """The weights, within the repository; of several shards the first."""
    mmproj: str = ""
    """The vision tower's file; "" if none was published with it."""
    gb: Annotated[float, Field(gt=0)] | None = None
    """The weights without the tower, GB (1e9 bytes); None: not published, estimated from the shapes."""
    mtp: Annotated[int, Field(ge=0)] = 0
    """Layers of multi-token prediction in the file."""
    same_bits: bool = False
    """True if it has the weights that the model's maker publishes, bit by bit, in another container."""
    license: str = ""
    note: str = ""
    sources: Sources
    date: Date

    @property
    def name(self) -> ModelName:
        """The parts of its id."""
        return model_name(self.id)


class PublishedGgufs(Value):
    """Contents of the file, in its order: of one model the best measured first."""

    ggufs: UniqueEntries[PublishedGguf]


GGUFS = DataFile("models/ggufs.yaml", PublishedGgufs)


def published_gguf(model: str) -> PublishedGguf | None:
    """The entry of a name, letter case of the tag aside; without a tag, that of the only one of its repository.

    Raises:
        FactError: the repository has several, and the name no tag.
    """
    wanted = gguf_name(model)
    if wanted is None:
        return None
    of_repository = _by_repository().get(wanted.base, ())
    if wanted.tag:
        return next((one for one in of_repository if one.name.tag.lower() == wanted.tag.lower()), None)
    if len(of_repository) > 1:
        raise FactError(
            f"{wanted.base} has several quantisations: {tags_with_sizes(of_repository)}.",
            means="Each is a checkpoint of its own, with its own size, speed and quality.",
            do=f"Name one: `model: {of_repository[0].id}`.",
        )
    return next(iter(of_repository), None)


def tags_with_sizes(ggufs: Sequence[PublishedGguf]) -> str:
    """`UD-Q4_K_XL (21 GB), UD-Q8_K_XL`: without a size if none was published."""
    return ", ".join(f"{one.name.tag} ({gb(one.gb * 1e9)})" if one.gb else one.name.tag for one in ggufs)


def published_tags(repository: str) -> tuple[PublishedGguf, ...]:
    """The entries of a repository, letter case aside; () if nothing of it is known."""
    return next((found for name, found in _by_repository().items() if name.lower() == repository.lower()), ())


@cache
def _by_repository() -> dict[str, tuple[PublishedGguf, ...]]:
    found: dict[str, tuple[PublishedGguf, ...]] = {}
    for one in GGUFS.content.ggufs:
        found[one.name.base] = (*found.get(one.name.base, ()), one)
    return found


def as_gguf(
    shapes: Checkpoint, name: ModelName, entry: PublishedGguf | None, *, native_mxfp4: bool = False
) -> Checkpoint:
    """A model's shapes with the weights stored as a GGUF of that tag.

    Args:
        shapes: of the model, in any format.
        name: the GGUF's, with its tag.
        entry: what is published of it; None if nothing is: its files are named as they usually are.
        native_mxfp4: the maker's experts are in MXFP4, and stay so whatever the tag (`keeps_mxfp4`).

    Raises:
        FactError: the tag names no known quantisation.
    """
    tag = _format_of_tag(name)
    stored = "gguf-mxfp4" if native_mxfp4 else tag
    form = physics().formats[stored]
    format_name = stored if stored in WHOLE_BITS else form.klass
    bits = bits_of_parts(form)
    if native_mxfp4 and tag == "bf16":
        bits = {**dict.fromkeys(bits, 16.0), Part.EXPERTS: bits[Part.EXPERTS]}
    mtp = _mtp(shapes, name, entry)
    parameters = shapes.parameters_by_part()
    weights = tuple(
        _portion(part, count, bits[part], format_name)
        for part, count in parameters.items()
        if part in bits and (part is not Part.MTP or mtp) and count
    )
    tower = tuple(one for one in shapes.weights if one.part is Part.VISION)
    vision = bool(entry.mmproj) if entry is not None else (None if shapes.declares_vision else False)
    known = shapes.model_copy(
        update={
            "id": name.tagged,
            "gguf": _files(name, entry),
            "weights": weights,
            "bytes_on_disk": sum(one.bytes for one in weights),
            "weights_known": False,
            "quantization": None
            if stored == "bf16"
            else Quantization(
                method="gguf", scheme=Scheme(format=format_name, bits=WHOLE_BITS.get(format_name, 4))
            ),
            "mtp_layers": mtp,
            "declared_mtp_layers": mtp,
            "vision": vision,
        }
    )
    if entry is not None and entry.gb is not None:
        known = known.sized(entry.gb * 1e9, evenly=stored in EVEN)
    if vision is False or not tower:
        return known
    size = known.bytes_on_disk + sum(one.bytes for one in tower)
    return known.model_copy(update={"weights": (*known.weights, *tower), "bytes_on_disk": size})


def _format_of_tag(name: ModelName) -> str:
    """The format of most weights of a tag. Raises FactError for a tag that names no known quantisation."""
    stored = format_of_tag(name.tag)
    if stored is None:
        raise FactError(
            f"{name.tagged}: {name.tag} is no known quantisation of GGUF.",
            means="Without it neither its size nor its speed can be derived.",
            do="Name the tag as the files of the repository have it, such as Q4_K_M, UD-Q4_K_XL, MXFP4 or BF16.",
        )
    return stored


def _files(name: ModelName, entry: PublishedGguf | None) -> GgufFiles:
    """The published files of a tag, or the usual name of its one file."""
    if entry is None:
        return GgufFiles(model=f"{stem_of(name.base).rpartition('/')[2]}-{name.tag}.gguf", mmproj="")
    return GgufFiles(model=entry.file, mmproj=entry.mmproj)


def bits_of_parts(form: Format) -> dict[Part, float]:
    """Bits per weight of each part in a file of that format, scales included."""
    bits = {part: form.bits[kind] for part, kind in BITS_OF_PART.items()}
    return bits | dict.fromkeys(WHOLE_PARTS, 32.0)


def keeps_mxfp4(shapes: Checkpoint) -> bool:
    """True if its experts are published in MXFP4 and cannot be quantised to blocks of 256."""
    native = any(one.part is Part.EXPERTS and one.format == "mxfp4" for one in shapes.weights)
    return native and shapes.hidden_size % SUPER_BLOCK != 0


def _mtp(shapes: Checkpoint, name: ModelName, entry: PublishedGguf | None) -> int:
    """Layers of MTP in the file; if nothing is published of it, those of the model if the repository is named for them."""
    if entry is not None:
        return entry.mtp
    return shapes.declared_mtp_layers if "mtp" in name.base.lower().split("-") else 0


def _portion(part: Part, parameters: int, bits: float, format_name: str) -> Portion:
    return Portion(
        part=part,
        dtype="GGUF",
        format=format_name,
        parameters=parameters,
        bytes=round(parameters * bits / 8),
    )
