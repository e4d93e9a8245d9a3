"""The model of a published measurement: its config by its name, read as `plan` reads it.

A row has a name and a label of quantisation. Shapes come from a config that is known by that name, or a sibling's, through
`checkpoint_from_config` and `from_checkpoint` as for a plan; if only a size is known, they are guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from sparkfleet.accuracy.aliases import folded, published_quant
from sparkfleet.accuracy.aliases import format_of as format_of_label
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.checkpoints.sizes.size_estimate import LEFT_OVER, factors_to
from sparkfleet.errors import FactError
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.measurements import architectures, siblings
from sparkfleet.knowledge.models.known_models import (
    MODELS,
    checkpoint_if_known,
    config_name,
    known_as,
    quant_in_name,
)
from sparkfleet.knowledge.models.model_names import matches, plain
from sparkfleet.knowledge.models.published_checkpoints import PublishedCheckpoint, load_published, published
from sparkfleet.knowledge.models.published_ggufs import EVEN, WHOLE_PARTS
from sparkfleet.perf.model_shape import GUESSED, PART_KINDS, ModelShape, from_checkpoint, from_counts
from sparkfleet.perf.weight_formats import format_of

ConfigJson = Mapping[str, object]
Configs = Mapping[str, ConfigJson]


class Declined(Exception):
    """A row that cannot be predicted; the message is the reason, in words that can be counted."""


class Stored(NamedTuple):
    """Weight format of a row."""

    format: str
    """Key of `formats` in physics.yaml."""
    scale: float = 1.0
    """Bits of its linear layers relative to the format's own (EXL3 has them in its name)."""
    total_bytes: float | None = None
    """Size of all weights, if it is published."""


class Size(NamedTuple):
    """Published sizes of a model, beside its name."""

    total_b: float | None = None
    """Parameters in billions; likewise `active_b`."""
    active_b: float | None = None
    notes: str = ""
    """Words about the architecture ("moe gdn hybrid")."""


UNSTATED = Size()

QUANTISATIONS: Mapping[str, str] = {
    "bf16": "bf16",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "fp8+mxfp4": "fp8+mxfp4-experts",
}
"""Formats of vLLM's and SGLang's checkpoints → name for `checkpoint_from_config`. Others have the bits of physics.yaml."""
PLAUSIBLE = (0.6, 1.6)
"""Published size of the weights over the size by the label; beyond, it is the size of something else."""


def find_shape(name: str, configs: Configs, stored: Stored, size: Size = UNSTATED) -> ModelShape:
    """Shapes and bits of a model: those of its config, a sibling's, its stated size, or the size in its name.

    Args:
        name: as published, with or without owner and format.
        configs: known configs by name, see `knowledge.measurements.architectures`.
        stored: format of its weights.
        size: further published figures.

    Raises:
        Declined: none of these is known.
    """
    name = _published_name(name, configs)
    try:
        checkpoint = checkpoint_of(name, configs, stored)
    except FactError as error:
        return _from_stated(name, configs, stored, size, error)
    if checkpoint is not None:
        return from_checkpoint(_as_stored(name, checkpoint, stored))
    named_total, named_active = _size_in_name(name)
    total, active = size.total_b or named_total, size.active_b or named_active
    if total is None:
        raise Declined("model not known and its size not given")
    _require_plausible(total, active or total)
    sibling = _by_size(name, total, active, size.notes)
    if sibling is not None:
        return find_shape(sibling, configs, stored)
    if active is None and "moe" in size.notes:
        raise Declined("active parameters not given")
    return _guessed(name, total, active or total, size.notes, stored)


def _published_name(name: str, configs: Configs) -> str:
    """The Hub id of a published checkpoint as its makers spell it; any other name as it is."""
    known = None if name in configs else published(re.sub(r"\s+", "-", name.strip()))
    return name if known is None else known.id


def checkpoint_of(name: str, configs: Configs, stored: Stored) -> Checkpoint | None:
    """A plan's facts about a model of that name, with the row's weight format; None if its config is not known.

    Raises:
        FactError: its config cannot be read.
    """
    entry = entry_of(name, configs)
    if not entry:
        return None
    own = configs[entry] if entry in configs and configs[entry] != architectures().get(entry) else None
    quantisation = QUANTISATIONS.get(stored.format)
    for quant in (None, quantisation or "bf16"):
        found = _facts(entry, own, quant)
        if found is not None and (quant is not None or format_of(found) == stored.format):
            break
    if found is None:
        return None
    named = found.model_copy(update={"id": name})
    return named if quantisation or quant is None else _with_bits(named, stored)


def _facts(entry: str, own: ConfigJson | None, quant: str | None) -> Checkpoint | None:
    try:
        return (
            known_as(entry, quant)
            if own is None
            else checkpoint_from_config(own, id=entry, quantization=quant)
        )
    except FactError:
        if quant is not None:
            raise
        return None  # its format is not recognised, and the row has it


def entry_of(name: str, configs: Configs) -> str:
    """The name of a model in the knowledge: a Hub id, the name of a config, or "".

    Args:
        name: as published: any letter case, with or without owner, with blanks for hyphens, with words about its format.
        configs: known configs by name.
    """
    if name in configs and configs[name] != architectures().get(name):
        return name
    spelled = re.sub(r"\s+", "-", name.strip())
    return (
        _published_id(spelled) or (spelled if config_name(spelled) else "") or _entry_by_rest(name, configs)
    )


@cache
def _published_id(name: str) -> str:
    """A Hub id of `models.yaml`, by a name with or without its owner, or ""."""
    globs = tuple(glob for known in MODELS.content.models for glob in known.match)
    owners = dict.fromkeys(["any", *(glob.partition("/")[0] for glob in globs)])
    ids = [name] if "/" in name else [f"{owner}/{name}" for owner in owners if "*" not in owner]
    return next((id_ for id_ in ids if matches(id_, globs)), "")


def _entry_by_rest(name: str, configs: Configs) -> str:
    entry = _sibling(plain(name), configs) or str(configs.get("_aliases", {}).get(name, ""))
    if entry in configs:
        return entry
    return next((k for k in configs if plain(k) == plain(name) and not k.startswith("_")), "")


def _with_bits(checkpoint: Checkpoint, stored: Stored) -> Checkpoint:
    """The same weights with a format's bits by part; parts that physics.yaml does not list stay as they are."""
    by_kind = _bits(stored)
    bits: dict[Part, float] = {
        one.part: by_kind[kind] for one in checkpoint.weights if (kind := PART_KINDS[one.part]) in by_kind
    }
    if physics().formats[stored.format].klass.startswith("gguf"):
        bits |= dict.fromkeys(WHOLE_PARTS, 32.0)
    weights = tuple(
        one.model_copy(update={"bytes": round(one.parameters * bits[one.part] / 8)})
        if one.part in bits
        else one
        for one in checkpoint.weights
    )
    return checkpoint.model_copy(
        update={"weights": weights, "bytes_on_disk": sum(one.bytes for one in weights)}
    )


def _bits(stored: Stored) -> dict[str, float]:
    linear = ("experts", "mlp", "attention", "shared", "mtp")
    known = physics().formats[stored.format].bits
    bits: dict[str, float] = {str(kind): each for kind, each in known.items()}
    bits.setdefault("mtp", bits["experts"])
    return {kind: each * (stored.scale if kind in linear else 1.0) for kind, each in bits.items()}


ANOTHER_BUILD = 0.07
"""A stated size that differs more is another build's; one that differs less counts the vision tower or leaves it out."""


def _as_stored(name: str, checkpoint: Checkpoint, stored: Stored) -> Checkpoint:
    """The weights with their published bits, or with the size in the row."""
    known = _published_bits(name, stored)
    if known is None:
        return _sized(checkpoint, stored.total_bytes, evenly=stored.format in EVEN)
    planned = checkpoint_if_known(known.id)
    is_same = planned is not None and planned.layers == checkpoint.layers
    exact = planned if planned is not None and is_same else known.stored(checkpoint)
    total = stored.total_bytes
    if total is not None and abs(total - exact.bytes_on_disk) > ANOTHER_BUILD * exact.bytes_on_disk:
        return _sized(checkpoint, total)
    return exact


def _published_bits(name: str, stored: Stored) -> PublishedCheckpoint | None:
    """The published checkpoint of that name; NVIDIA's build for a bare name ("Qwen3.6-27B NVFP4") without a size."""
    known, format_name = published(name.strip()), stored.format
    if known is None and "/" not in name and format_name == "nvfp4" and stored.total_bytes is None:
        known = next((one for id_, one in load_published().items() if _builds(id_, name)), None)
    if known is None:
        return None
    planned = checkpoint_if_known(known.id)
    is_same = planned is not None and format_of(planned) == format_name
    return known if is_same or _native(known, format_name) else None


def _builds(id_: str, name: str) -> bool:
    return id_.startswith("nvidia/") and id_.endswith("-nvfp4") and plain(id_) == plain(name)


def _native(known: PublishedCheckpoint, format_name: str) -> bool:
    """True if the maker itself publishes the checkpoint in that format, without a word in its name."""
    return quant_in_name(known.id) is None and format_of_label(published_quant(known.id)) == format_name


def _sized(checkpoint: Checkpoint, total_bytes: float | None, *, evenly: bool = False) -> Checkpoint:
    low, high = PLAUSIBLE
    if total_bytes is None or not low <= total_bytes / max(1, checkpoint.bytes_on_disk) <= high:
        return checkpoint
    return checkpoint.sized(total_bytes, evenly=evenly)


def _guessed(name: str, total_b: float, active_b: float, notes: str, stored: Stored) -> ModelShape:
    shape = from_counts(name, total_b, active_b, family=plain(name), notes=notes)
    bits = _bits(stored)
    parts = tuple(part.model_copy(update={"bits": bits.get(part.kind, part.bits)}) for part in shape.parts)
    guess = shape.model_copy(update={"parts": parts})
    if stored.total_bytes is None:
        return guess
    low, high = PLAUSIBLE
    if not low <= stored.total_bytes / guess.bytes <= high:
        return guess
    soft = [part for part in parts if part.kind in SOFT]
    factors = factors_to(
        stored.total_bytes,
        size=guess.bytes,
        soft=sum(part.bytes for part in soft),
        soft_parameters=sum(part.params for part in soft),
    )
    sized = (part.model_copy(update={"bits": part.bits * factors[part.kind not in SOFT]}) for part in parts)
    return guess.model_copy(update={"parts": tuple(sized)})


MOST = 1e6
"""More than any width, or number of experts."""
SOFT = frozenset(PART_KINDS[part] for part in LEFT_OVER)


def _from_stated(name: str, configs: Configs, stored: Stored, size: Size, error: FactError) -> ModelShape:
    """Guesses shapes from published numbers of parameters, for a model whose config cannot be read."""
    entry = entry_of(name, configs)
    config = configs.get(config_name(entry) or entry, {})
    total, active = (_number(config, key) for key in ("params_total_b", "params_active_b"))
    if not total:
        total, active = size.total_b or 0.0, size.active_b or 0.0
    if not total:
        raise Declined(f"its config cannot be read: {error.what.rpartition(': ')[2]}") from error
    _require_plausible(total, active or total)
    notes = str(config.get("attention", "")) or size.notes
    return _stated_shapes(_guessed(name, total, active or total, notes, stored), config)


def _stated_shapes(guess: ModelShape, config: ConfigJson) -> ModelShape:
    """The guess with the further fields of a summary: width, experts, and a model with the same kinds of layers. Raises
    Declined if it has fewer experts than a token picks."""
    stated = {"hidden": "hidden_size", "experts": "num_experts", "top_k": "num_experts_per_tok"}
    found = {
        field: int(value) for field, key in stated.items() if 1 <= (value := _number(config, key)) < MOST
    }
    experts, top_k = (found.get(field, getattr(guess, field)) for field in ("experts", "top_k"))
    if 0 < experts < top_k:
        raise Declined(f"its summary has {top_k} experts per token of {experts} in all")
    like = known_as(str(config.get("layers_like", ""))) if "layers_like" in config else None
    if like is not None:
        layers = from_checkpoint(like).layers
        return guess.model_copy(
            update={**found, "layers": layers.model_copy(update={"pool_factor": GUESSED})}
        )
    return guess.model_copy(update=found)


def _number(config: ConfigJson, key: str) -> float:
    value = config.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


SMALLEST, BIGGEST = 0.05, 20_000.0
"""Parameters (billions) of models whose shapes are guessed from their counts."""


def _require_plausible(total_b: float, active_b: float) -> None:
    if not SMALLEST <= total_b <= BIGGEST or not 0.001 * total_b <= active_b <= total_b:
        raise Declined("model not known and its size is not plausible")


def _sibling(key: str, configs: Configs) -> str:
    named = key.replace("_", "-")
    return next(
        (entry for pattern, entry in siblings() if entry in configs and re.search(pattern, named)), ""
    )


def _size_in_name(name: str) -> tuple[float | None, float | None]:
    text = folded(name)
    moe = re.search(r"([0-9]+(?:\.[0-9]+)?)b-a([0-9]+(?:\.[0-9]+)?)b", text)
    if moe:
        return float(moe.group(1)), float(moe.group(2))
    small = re.search(r"(?:^|-)([0-9]+)m(?:$|-)", text)
    dense = re.search(r"(?:^|[-:e])([0-9]+(?:\.[0-9]+)?)b(?:$|[-)])", text)
    if dense:
        return float(dense.group(1)), float(dense.group(1)) if float(dense.group(1)) < 33 else None
    return (float(small.group(1)) / 1000,) * 2 if small else (None, None)


_OTHER_MAKERS = re.compile(
    r"gemma|llama|mistral|mixtral|magistral|devstral|nemotron|glm|phi-|granite|falcon|command|aya|olmo|exaone|gpt|deepseek|minimax|kimi|step-"
    r"|seed|ernie|hunyuan|lfm|jamba|internlm|solar|starcoder|coder-33b|bloom|mpt|opt-|yi-|apertus|cosmos|qwen-?[23](?!\.[5-9])"
)
_QWEN_BY_SIZE = {27: "Qwen/Qwen3.5-27B", 35: "Qwen/Qwen3.5-35B-A3B"}


def _by_size(name: str, total: float, active: float | None, notes: str) -> str | None:
    """A Qwen3.5 sibling by its size: many fine-tunes have only their maker in the name, and no other family."""
    unnamed = not notes and active in (3, total, None) and not _OTHER_MAKERS.search(plain(name))
    return _QWEN_BY_SIZE.get(round(total)) if "gdn" in notes or unnamed else None
