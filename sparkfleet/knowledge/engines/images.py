"""Container images that are known to run, or not to run, on a Spark: `images.yaml`, checked on load."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries, pairs
from sparkfleet.specs.deployment import Method, PlannedEngine
from sparkfleet.values import Value

_RELEASE_TAGS = {
    "vllm/vllm-openai": re.compile(r"v(?P<version>\d+\.\d+\.\d+)(?![\w.])"),
    "lmsysorg/sglang": re.compile(r"v(?P<version>\d+\.\d+\.\d+(?:\.post\d+)?)(?![\w.])"),
    "ghcr.io/ggml-org/llama.cpp": re.compile(r"server-cuda(?:1[23])?-(?P<version>b\d{4,5})(?![\w.])"),
    "nvcr.io/nvidia/tensorrt-llm/release": re.compile(r"(?P<version>\d+\.\d+\.\d+(?:rc\d+)?)(?![\w.])"),
}
"""Tags of official release images; a suffix has the platform ("-aarch64", "-cu130")."""

Status = Literal["works", "limited", "broken", "unproven"]
RequantizedBits = Annotated[tuple[tuple[Literal["attention", "head"], float], ...], BeforeValidator(pairs)]
"""Parts of a checkpoint that a build stores in fewer bits than the checkpoint does: bits per weight, scales included."""
Library = Literal["nccl", "flashinfer", "cutlass", "ptxas", "fastsafetensors", "torch", "triton"]


class DiskTables(Value):
    """Settings with which an engine reads the n-gram tables of a type of model from the disk, and keeps none in memory."""

    model_type: str
    """Of config.json."""
    args: tuple[str, ...] = ()
    env: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    written: bool = False
    """True if each start writes them to a file in its container, because the former one was deleted with its container."""


class Image(Value):
    """One build of an image."""

    id: str
    image: Annotated[str, Field(pattern=r"^[^\s@]+:[^\s@/]+$")]
    """Repository and tag."""
    build: str = ""
    """Distinguishes builds of one tag, e.g. "re-tag"; "" if only one is known."""
    digests: tuple[Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")], ...] = ()
    engine: PlannedEngine
    engine_version: str | None
    """Version for comparison by rules; None: not published, or the tag moves."""
    cuda: str = ""
    libraries: Annotated[tuple[tuple[Library, str], ...], BeforeValidator(pairs)] = ()
    methods: tuple[Method, ...] = ()
    """Speculative methods that are known to work; empty: nothing is published."""
    quants: tuple[str, ...] = ()
    """Quantisations that are known to work; empty: nothing is published."""
    tables: tuple[DiskTables, ...] = ()
    """Types of models whose n-gram tables are known to work from the disk."""
    requantizes: RequantizedBits = ()
    """Parts of checkpoints in `quants` that it quantises further while it loads."""
    named_only: str = ""
    """Reason why it is taken only if a deployment names it; "" if a plan may choose it."""
    built_with: str = ""
    """The command that builds it on a node; "" if it is in a registry."""
    status: Status
    note: str = ""
    sources: Sources
    date: Date

    @property
    def by_name(self) -> str:
        """Reason why a plan takes it only if a deployment names it; "" if a plan may choose it."""
        local = "/" not in self.image
        return self.named_only or ("exists only where it was built, in no registry" if local else "")

    def library(self, name: Library) -> str | None:
        """The version of a library inside; None if it is not published."""
        return dict(self.libraries).get(name)

    def requantized(self, quant: str) -> RequantizedBits:
        """Parts that it stores in other bits than a checkpoint of that quantisation does."""
        return self.requantizes if quant in self.quants else ()

    def disk_tables(self, model_type: str) -> DiskTables | None:
        """Settings for tables on the disk; None if no working case is known."""
        return next((one for one in self.tables if one.model_type == model_type), None)


class Images(Value):
    """Contents of the file, in its order."""

    images: UniqueEntries[Image]


IMAGES = DataFile("engines/images.yaml", Images)


def images_of(reference: str, images: tuple[Image, ...] | None = None) -> tuple[Image, ...]:
    """The builds that `reference` ("repository:tag", with or without "@sha256:…") may name.

    None: not known. Several: the tag was moved, and the reference has no digest that decides.
    """
    known = IMAGES.content.images if images is None else images
    tagged, _, digest = reference.partition("@")
    if digest and (exact := tuple(image for image in known if digest in image.digests)):
        return exact
    return tuple(image for image in known if image.image == tagged)


def engine_version_of(reference: str) -> str | None:
    """The engine's version inside an image.

    For an image that is not listed, the version in its tag, if its makers tag releases. None if the image or its version is
    not known. If a tag was moved, the version without the build, so that rules about one build answer "unknown".
    """
    known = images_of(reference)
    if not known:
        return _release_tagged(reference)
    versions = {image.engine_version for image in known}
    if len(versions) == 1:
        return versions.pop()
    plain = {version.split()[0] for version in versions if version}
    return plain.pop() if len(plain) == 1 and None not in versions else None


def requantized_by(reference: str, quant: str) -> RequantizedBits:
    """Parts that the build which `reference` names stores in other bits; none if it is not known, or one of several."""
    known = images_of(reference)
    return known[0].requantized(quant) if len(known) == 1 else ()


def _release_tagged(reference: str) -> str | None:
    repository, _, tag = reference.partition("@")[0].rpartition(":")
    pattern = _RELEASE_TAGS.get(repository)
    matched = pattern.match(tag) if pattern else None
    return matched["version"] if matched else None
