"""Checkpoints that are known by name, for plans before a download: `models.yaml`, checked on load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.checkpoints.io.licenses import License, license_class
from sparkfleet.errors import FactError
from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries
from sparkfleet.knowledge.measurements import architectures, siblings
from sparkfleet.knowledge.models.gguf_formats import gguf_name, stem_of
from sparkfleet.knowledge.models.model_names import matches
from sparkfleet.knowledge.models.published_checkpoints import load_published, published
from sparkfleet.knowledge.models.published_ggufs import GGUFS, as_gguf, keeps_mxfp4, published_gguf
from sparkfleet.specs.model_name import ModelName, base_name
from sparkfleet.units import gb
from sparkfleet.values import Value

EMPTY: Mapping[str, str | int | bool] = MappingProxyType({})

_QUANT_IN_NAME = (
    (r"mxfp4", "mxfp4"),
    (r"nvfp4.*w4a16|w4a16.*nvfp4", "nvfp4-w4a16"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp8", "mxfp8"),
    (r"fp8", "fp8"),
    (r"gptq-int8", "gptq-int8"),
    (r"gptq", "gptq-int4"),
    (r"awq", "awq"),
    (r"autoround", "int4-autoround"),
    (r"bnb-8bit", "bnb-int8"),
    (r"bnb", "nf4"),
    (r"int8|w8a8", "int8"),
    (r"int4|w4a16|4bit", "int4"),
    (r"bf16", "bf16"),
)
"""Words in names of checkpoints → quantisation for `checkpoint_from_config`; the first match counts."""
_QUANTISED_BY_THEIR_MAKERS = re.compile(
    r"/(?:DeepSeek-(?:V[34]|R1)|Kimi-K2-Thinking|Kimi-K2\.5|MiniMax-M2|MiMo-V2|gpt-oss)"
)
"""Entries of configs.json whose weights are published in the config's own format only: fine-tunes keep it."""
_EXL3 = re.compile(r"(?:exl3|tr3).*?(?<![0-9.])([1-8](?:\.[0-9]{1,2})?)bpw")
_OTHERWISE = re.compile(r"exl[23]|gguf|[0-9]bpw|(?:^|[-_.])i?q[1-8](?:_|$)|(?:^|[-_.])mlx(?:[-_.]|$)")
"""Formats whose size no known config contains."""
_MLX = "mlx-community/"
_FORMAT = re.compile(
    r"nvfp4\w*|mxfp[48]|fp[48]|bf16|int[48]\w*|gptq|awq|autoround|[48]bit|w[48]a\d+|block|dynamic|mixed|fast|mtp|lmhead|hybrid"
    r"|sm121|gb10|spark"
)
_FORMAT_PREFIX = "spark_"
"""A word of a format in front of a name: bjk110/SPARK_Qwen3.5-122B-A10B-NVFP4."""
_BASE = re.compile(r"-(?:base|pt)(?![a-z])", re.IGNORECASE)
"""The word of a base model in its name: Qwen/Qwen3-8B-Base, google/gemma-3-12b-pt."""


def _known_shapes(config: str) -> str:
    if config not in architectures():
        raise ValueError(f"{config} is not in measurements/configs.json")
    return config


class KnownModel(Value):
    """Published facts about a checkpoint, or a family of them."""

    id: str
    match: Annotated[tuple[str, ...], Field(min_length=1)]
    """Globs on the Hub id, letter case aside."""
    config: Annotated[str, AfterValidator(_known_shapes)]
    """Entry of `measurements/configs.json` with the same shapes."""
    keys: dict[str, str | int | bool] = Field(default_factory=dict)
    """Fields of its config.json that the entry lacks or has otherwise."""
    quant: str | None = None
    """Quantisation for `checkpoint_from_config`; None: it is in the name."""
    gb: Annotated[float, Field(gt=0)] | None = None
    """All weights, GB (1e9 bytes); None: not published, estimated from the shapes."""
    mtp: int | None = None
    """MTP layers in the weight map; None: not published."""
    vision: bool | None = None
    """True if the weight map has a vision tower; None: not published."""
    license: str = ""
    base: tuple[str, ...] = ()
    """Globs of base models among these, which were not trained for conversations and whose names do not have that."""
    note: str = ""
    sources: Sources
    date: Date

    def names(self, model: str) -> bool:
        """True if `model` is one of these."""
        return matches(model, self.match)


class UnshapedModel(Value):
    """A checkpoint that is published by name, but cannot be planned by it."""

    id: str
    """As it was published."""
    match: tuple[str, ...] = ()
    """Globs of others that are refused for the same reason, letter case aside."""
    reason: str = ""
    """Reason why no plan is made; "": the shapes of its layers are not known."""
    do: str = ""
    """Remedy; "": its config.json."""
    sources: Sources
    date: Date

    def names(self, model: str) -> bool:
        """True if `model` is one of these."""
        return model == self.id or matches(model, self.match)


class PublishedLicense(Value):
    """A license of the makers' own uploads, for those whose entry names none."""

    id: str
    match: Annotated[tuple[str, ...], Field(min_length=1)]
    """Globs on the Hub id with its owner, letter case aside: a requantised copy may have another license."""
    license: Annotated[str, Field(min_length=1)]
    sources: Sources
    date: Date


class KnownModels(Value):
    """Contents of the file, in its order."""

    models: UniqueEntries[KnownModel]
    licenses: UniqueEntries[PublishedLicense]
    unshaped: UniqueEntries[UnshapedModel]


MODELS = DataFile("models/models.yaml", KnownModels)


@lru_cache(maxsize=1024)
def _entry_of(name: str) -> KnownModel | None:
    """The first entry whose globs match a Hub id."""
    return next((known for known in MODELS.content.models if known.names(name)), None)


@lru_cache(maxsize=256)
def known_checkpoint(model: str) -> Checkpoint | None:
    """The facts of a checkpoint by its Hub id alone, sizes estimated; None if nothing is known about it.

    Raises:
        FactError: its shapes are known, but its format is not recognised.
    """
    gguf = gguf_name(model)
    if gguf is not None:
        return _known_gguf(gguf)
    name = base_name(model)
    one = _entry_of(name)
    parts = published(name)
    trellis = exl3_in_name(model)  # ExLlamaV3's makers publish each number of bits as a revision
    of_another = _OTHERWISE.search(name.rpartition("/")[2].lower()) or name.lower().startswith(_MLX)
    is_otherwise = of_another and trellis is None
    if (one is None or one.quant is None) and is_otherwise:
        raise _of_another_engine(name, None if parts is None else parts.bytes)
    try:
        found = known_as(name, trellis)
    except FactError as error:
        raise error if parts is None or parts.bytes is None else _without_shapes(name, parts.bytes) from error
    if found is None:
        other = next((other for other in MODELS.content.unshaped if other.names(name)), None)
        if other is not None and other.reason:
            raise FactError(f"{name} cannot be planned by its name.", means=other.reason, do=other.do)
        if parts is not None or other is not None:
            raise _without_shapes(name, None if parts is None else parts.bytes)
        return None
    if parts is not None:
        found = parts.stored(found)
    found = _licensed(found)
    is_sized = parts is not None and parts.bytes is not None
    return found if is_sized or one is None or one.gb is None else found.sized(one.gb * 1e9)


@lru_cache(maxsize=256)
def checkpoint_if_known(model: str) -> Checkpoint | None:
    """The facts of a checkpoint by its Hub id alone; None also if its shapes or its format cannot be derived from it."""
    try:
        return known_checkpoint(model)
    except FactError:
        return None


def _known_gguf(name: ModelName) -> Checkpoint | None:
    """The facts of a GGUF by its name: as published, or with the shapes of the model that its repository is named for.

    Raises:
        FactError: the name has no tag, and more than one quantisation or none is published.
    """
    entry = published_gguf(name.tagged)
    if entry is None and not name.tag:
        raise FactError(
            f"{name.base}: a GGUF repository has several quantisations, and the name has no tag.",
            means="Each is a checkpoint of its own, with its own size, speed and quality.",
            do=f"Name one as its files do, such as `model: {name.base}:Q4_K_M`.",
        )
    made_of = stem_of(name.base) if entry is None else entry.model
    shapes = known_as(made_of, "bf16")
    if shapes is None:
        return None
    named = ModelName(name.base, tag=name.tag if entry is None else entry.name.tag)
    return as_gguf(_licensed(shapes), named, entry, native_mxfp4=_keeps_mxfp4(made_of))


def _keeps_mxfp4(model: str) -> bool:
    """True if all GGUFs of a model have the maker's experts in MXFP4.

    Not of one whose name has more words than the maker's: a fine-tune of gpt-oss in 16 bits is quantised like other models.
    """
    shapes = config_name(model)
    if shapes is None:
        return False
    maker = shapes.partition("/")[0]
    own = f"{maker}/{model.rpartition('/')[2].lower().removeprefix(f'{maker}_')}"
    found = checkpoint_if_known(own) if _entry_of(own) is not None else None
    return found is not None and keeps_mxfp4(found)


def ggufs_of(checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
    """Published GGUFs of the model of a checkpoint, the best measured first; none for one that is a GGUF itself.

    A model is the same if its name without owner and format is, and its shapes are.
    """
    if checkpoint.gguf is not None:
        return ()
    own = without_format(checkpoint.id.partition("@")[0])
    found = (checkpoint_if_known(one.id) for one in GGUFS.content.ggufs if without_format(one.model) == own)
    return tuple(one for one in found if one is not None and one.layers == checkpoint.layers)


def _licensed(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` with the license of its maker's uploads, if none is known."""
    known = (one for one in MODELS.content.licenses if matches(checkpoint.id, one.match))
    one = None if checkpoint.license.id else next(known, None)
    return checkpoint if one is None else checkpoint.model_copy(update={"license": _license(one.license)})


def _license(name: str) -> License:
    return License(id=name, kind=license_class(name), source="knowledge/models/models.yaml")


def _of_another_engine(name: str, size: int | None) -> FactError:
    known = "and its size is not known" if size is None else gb(size)
    weights = "take weights in a format of vLLM, SGLang or TensorRT-LLM"
    if "exl3" in name.lower():
        return FactError(
            f"{name}: stored as EXL3 or MLX, by its name, {known}.",
            means="EXL3 has any number of bits per weight; without it neither its size nor its speed can be derived.",
            do=f"Name the revision with its bits, such as `{name.partition(' ')[0]}@4.0bpw`, or {weights}.",
        )
    return FactError(
        f"{name}: stored as GGUF or MLX, by its name, {known}.",
        means="vLLM, SGLang and TensorRT-LLM are planned with safetensors of their own formats, llama.cpp with GGUF.",
        do=f"{weights.capitalize()}; or name a GGUF with its tag, such as `model: ORG/NAME-GGUF:Q4_K_M`.",
    )


def _without_shapes(name: str, size: int | None) -> FactError:
    known = "" if size is None else f"{gb(size)} are published, but "
    return FactError(
        f"{name}: {known}the shapes of its layers are not known.",
        means="Without them neither the KV cache nor the speed can be derived.",
        do=f"Run `sparkfleet models pull {name}`, or give the directory of the checkpoint: its config.json is enough.",
    )


@lru_cache(maxsize=1024)
def known_as(model: str, quantization: str | None = None) -> Checkpoint | None:
    """The facts of a checkpoint by its Hub id, sizes from its shapes alone; None if nothing is known about it.

    Args:
        model: Hub id.
        quantization: as for `checkpoint_from_config`; None: the published one, or that in its name.

    Raises:
        FactError: its shapes are known, but its format is not recognised.
    """
    name = base_name(model)
    one = _entry_of(name)
    if one is None:
        entry = _shapes_of(name)
        return None if entry is None else _estimated(name, entry, quantization or quant_in_name(name))
    quant = quantization or one.quant or quant_in_name(name)
    return _with_published(_estimated(name, one.config, quant, one.keys), one)


def config_name(model: str) -> str | None:
    """The entry of `measurements/configs.json` with the shapes of a checkpoint, by its Hub id; None if there is none."""
    name = base_name(model)
    one = _entry_of(name)
    return _shapes_of(name) if one is None else one.config


def globs_of(model: str) -> tuple[str, ...]:
    """The patterns by which a checkpoint is known, by its Hub id; () if there is none."""
    name = base_name(model)
    entry = _entry_of(name)
    return () if entry is None else tuple(glob for glob in entry.match if matches(name, (glob,)))


def quant_in_name(model: str) -> str | None:
    """The quantisation that a name claims; None if it claims none."""
    text = model.rpartition("/")[2].lower()
    named = next((quant for pattern, quant in _QUANT_IN_NAME if re.search(pattern, text)), None)
    return exl3_in_name(model) or named


def exl3_in_name(model: str) -> str | None:
    """EXL3 with its bits per weight, if a name claims both ("exl3-3.5bpw")."""
    found = _EXL3.search(model.rpartition("/")[2].lower())
    return None if found is None else f"exl3-{float(found[1]):g}bpw"


def _shapes_of(name: str) -> str | None:
    if name in architectures():
        return name
    plain = name.rpartition("/")[2].lower()
    found = next((shapes for pattern, shapes in siblings() if re.search(pattern, plain)), None)
    return found if found in architectures() else None


def _estimated(
    name: str, shapes: str, quant: str | None, keys: Mapping[str, str | int | bool] = EMPTY
) -> Checkpoint:
    config = {**architectures()[shapes], **keys}
    # Most siblings have another quantisation than this checkpoint.
    if quant is None and name != shapes and not _QUANTISED_BY_THEIR_MAKERS.search(shapes):
        quant = "bf16"
    try:
        return checkpoint_from_config(config, id=name, quantization=quant)
    except FactError as error:
        raise FactError(error.what, means=error.means, do="Give the directory of the checkpoint.") from error


def _with_published(checkpoint: Checkpoint, known: KnownModel) -> Checkpoint:
    weights = tuple(one for one in checkpoint.weights if known.mtp != 0 or one.part is not Part.MTP)
    return checkpoint.model_copy(
        update={
            "weights": weights,
            "bytes_on_disk": sum(portion.bytes for portion in weights),
            "mtp_layers": known.mtp,
            "vision": known.vision,
            "license": _license(known.license),
        }
    )


def without_format(id_: str) -> str:
    """A model's name without its owner and the words of a format: unlike `plain`, with its training and its version."""
    words = id_.rpartition("/")[2].lower().removeprefix(_FORMAT_PREFIX).split("-")
    return "-".join(word for word in words if not _FORMAT.fullmatch(word))


def is_base(id_: str) -> bool:
    """True for a base model, which continues texts: it was not trained for conversations."""
    name = id_.rpartition("/")[2]
    return _BASE.search(name) is not None or any(matches(id_, known.base) for known in MODELS.content.models)


def hub_spelling(name: str) -> str | None:
    """The Hub id of that name, letter case aside, as the Hub has it; None if the knowledge does not have it by itself."""
    return _hub_ids().get(name.lower())


@cache
def _hub_ids() -> Mapping[str, str]:
    ggufs = (one.name.base for one in GGUFS.content.ggufs)
    ids = (*architectures(), *(one.id for one in load_published().values()), *ggufs)
    return {one.lower(): one for one in ids if "/" in one}
