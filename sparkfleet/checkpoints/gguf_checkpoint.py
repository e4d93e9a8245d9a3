"""Reads the facts of a checkpoint from the headers of its GGUF files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sparkfleet.checkpoints.arch.attention_layers import group_layers
from sparkfleet.checkpoints.arch.draft_layers import MOST_DRAFTED
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part, Portion
from sparkfleet.checkpoints.checkpoint import Checkpoint, Sampling
from sparkfleet.checkpoints.gguf.gguf_architectures import DRAFTS, STATEFUL, model_type_of
from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles, choose, choose_file
from sparkfleet.checkpoints.gguf.gguf_header import GgufHeader, read_gguf, read_shards
from sparkfleet.checkpoints.gguf.gguf_layers import GgufLayers, check_known, refuse_architecture
from sparkfleet.checkpoints.gguf.gguf_weights import (
    GgufParts,
    dtype_of,
    is_of_state,
    layer_of_tensor,
    portions_of,
    quantization_of,
    tower_part,
)
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.hub_cache import gguf_names, name_of
from sparkfleet.checkpoints.io.licenses import License, license_class, read_license
from sparkfleet.checkpoints.io.safe_io import shown, size_of
from sparkfleet.errors import FactError
from sparkfleet.specs.gguf_names import SUFFIX, models_of
from sparkfleet.specs.model_name import BUILTIN_PREFIX, model_name

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
MOST_EXPERTS = 1 << 16


def is_gguf(source: Path, tag: str = "") -> bool:
    """True for a GGUF file, or a directory with GGUF models and no other weights; with a tag, whatever is beside them."""
    if source.suffix == SUFFIX and not source.is_dir():
        return True
    return bool(models_of(gguf_names(source))) and (
        bool(tag) or not any(map(_is_other_weights, source.iterdir()))
    )


def _is_other_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" and not path.name.startswith("adapter_")


def read_gguf_checkpoint(source: Path, *, id: str | None = None) -> Checkpoint:  # noqa: A002  # it is the value's own name
    """Reads the facts of a model in GGUF format.

    Args:
        source: a directory, or a GGUF file of the model.
        id: its name, with the tag if the directory has several models; a Hub id without one gets it. None takes it from
            the Hub's cache, or the path.

    Raises:
        FactError: a file is missing, damaged, hostile, or of an architecture that cannot be planned.
    """
    is_file = source.suffix == SUFFIX and not source.is_dir()
    directory = source.parent if is_file else source
    found, revision = name_of(directory)
    name = model_name(id or (str(source) if found.startswith("/") else found))
    names = gguf_names(directory)
    if is_file:
        files, chosen = choose_file(source.name, [one for one in names if "/" not in one], str(source))
    else:
        where = str(source) if name.base.startswith("/") else name.base
        files, chosen = choose(names, name.tag, where, {one: size_of(directory / one) for one in names})
    model = read_shards([directory / one for one in chosen if one != files.mmproj])
    tower = read_gguf(directory / files.mmproj) if files.mmproj else None
    license_ = _license(model)
    is_local = name.base.startswith("/") or name.base.startswith(BUILTIN_PREFIX)
    return _checkpoint(model, tower, files).model_copy(
        update={
            "id": name.base if is_local else f"{name.base}:{files.tag}",
            "revision": revision,
            "path": directory,
            "license": license_ if license_.id else read_license(directory),
        }
    )


def _checkpoint(model: GgufHeader, tower: GgufHeader | None, files: GgufFiles) -> Checkpoint:
    architecture = model.architecture
    check_known(architecture, model.where)
    refuse_architecture(architecture, model.where)
    _refuse_unknown_state(model)
    own = model.own
    read = GgufLayers(architecture, own)
    layers = read.read()
    linear = {index for index, layer in enumerate(layers) if layer.kind is LayerKind.LINEAR}
    parts = GgufParts(read.count, linear)
    _check_layers(model, layers)
    weights = portions_of(model.tensors, parts.part)
    seen = () if tower is None else portions_of(tower.tensors, tower_part)
    names = {tensor.name for tensor in model.tensors}
    moe = _layers_with(model, "_exps.", read.count)
    experts = own.integer_or(0, "expert_count", high=MOST_EXPERTS)
    is_mixture = experts > 1 and bool(moe)
    return Checkpoint(
        id=model.where,
        architectures=_draft_class(model, names),
        model_type=model_type_of(architecture),
        weights_known=True,
        bytes_on_disk=model.file_bytes + (tower.file_bytes if tower else 0),
        weights=(*weights, *seen),
        layers=group_layers(layers),
        moe_layers=len(moe) if is_mixture else 0,
        dense_layers=len(_layers_with(model, "ffn_down.", read.count) - (moe if is_mixture else set())),
        hidden_size=read.hidden,
        vocab_size=_vocabulary(model),
        max_positions=own.integer_or_none("context_length", low=1),
        experts=experts if is_mixture else 0,
        experts_per_token=_most_used(own) if is_mixture else 0,
        shared_experts=_shared(own, weights) if is_mixture else 0,
        vision=_sees(tower, seen),
        declares_vision=_sees(tower, seen),
        mtp_layers=len(
            {layer for name in names if (layer := layer_of_tensor(name)) is not None and layer >= read.count}
        ),
        declared_mtp_layers=read.drafting,
        draft_block=own.integer_or_none("block_size", low=1, high=MOST_DRAFTED)
        if architecture in DRAFTS
        else None,
        gguf=files,
        chat_template="tokenizer.chat_template" in model.metadata,
        quantization=quantization_of(weights),
        dtype=dtype_of(weights),
        tie_word_embeddings=HEAD not in names,
        needs_remote_code=False,
        sampling=_sampling(model),
    )


def _draft_class(model: GgufHeader, tensors: Collection[str]) -> tuple[str, ...]:
    """The class of a file that only drafts, as `draft_layers` knows it; () for a model."""
    found = DRAFTS.get(model.architecture)
    if found is None:
        return ()
    if found == "DFlash" and any(name.startswith("markov_") for name in tensors):
        return ("DSpark",)
    return ("DFlash2",) if found == "DFlash" and model.own.has("selector_top_k") else (found,)


def _refuse_unknown_state(model: GgufHeader) -> None:
    """Raises FactError for an architecture with states in its layers, whose size is not known."""
    found = next((tensor.name for tensor in model.tensors if is_of_state(tensor.name)), None)
    if found is not None and model.architecture not in STATEFUL:
        raise FactError(
            f"{model.where}: has the tensor {shown(found)}, and the architecture {model.architecture} is not known.",
            means="The memory of its state cannot be derived.",
            do="Give the checkpoint in safetensors format, or choose another model.",
        )


def _check_layers(model: GgufHeader, layers: Collection[LayerGroup]) -> None:
    """Raises FactError if a layer has no tensors: shards of another model, or keys of one."""
    found = {layer_of_tensor(tensor.name) for tensor in model.tensors}
    missing = [index for index in range(len(layers)) if index not in found]
    if missing:
        raise FactError(
            f"{model.where}: no weights for {len(missing)} of {len(layers)} layers, the first is layer {missing[0]}.",
            means="The file is incomplete, or its keys belong to another model.",
            do="Download the file again.",
        )


def _layers_with(model: GgufHeader, word: str, layers: int) -> set[int]:
    found = (layer_of_tensor(tensor.name) for tensor in model.tensors if word in tensor.name)
    return {layer for layer in found if layer is not None and layer < layers}


def _vocabulary(model: GgufHeader) -> int:
    """Rows of the embedding, or else tokens of the tokenizer."""
    rows = next((tensor.shape[-1] for tensor in model.tensors if tensor.name == EMBEDDING), None)
    found = rows or model.count("tokenizer.ggml.tokens")
    if not found:
        raise FactError(
            f"{model.where}: has no {EMBEDDING} and no tokenizer.",
            means="The file is incomplete.",
            do="Download it again.",
        )
    return found


def _most_used(own: Config) -> int:
    listed = own.values.get("expert_used_count")
    if isinstance(listed, list):
        return max(own.integers("expert_used_count", high=MOST_EXPERTS) or (0,))
    return own.integer("expert_used_count", high=MOST_EXPERTS)


def _shared(own: Config, weights: Collection[Portion]) -> int:
    has = any(portion.part is Part.SHARED_EXPERTS for portion in weights)
    return max(1, own.integer_or(1, "expert_shared_count", high=MOST_EXPERTS)) if has else 0


def _sees(tower: GgufHeader | None, weights: Collection[Portion]) -> bool:
    declared = tower is not None and tower.metadata.get("clip.has_vision_encoder") is not False
    return declared and any(portion.part is Part.VISION for portion in weights)


def _license(model: GgufHeader) -> License:
    """The license that the file names; an author's own by the name beside it."""
    general = Config(model.metadata, model.where)
    named, own = (_short(general, key) for key in ("general.license", "general.license.name"))
    found = own if own and named in ("", "other", "unknown") else named
    return License(id=found, kind=license_class(found), source=Path(model.where).name) if found else License()


def _short(general: Config, key: str) -> str:
    value = general.values.get(key)
    fits = isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()
    return str(value).lower() if fits else ""


def _sampling(model: GgufHeader) -> Sampling:
    """The sampling defaults that the file has, as far as they are numbers."""

    def number(key: str) -> float | None:
        value = model.metadata.get(f"general.sampling.{key}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
            return None
        return round(float(value), 6)  # from 32 bits

    top_k = number("top_k")
    return Sampling(
        temperature=number("temp"),
        top_p=number("top_p"),
        top_k=int(top_k) if top_k is not None and top_k.is_integer() else None,
    )
