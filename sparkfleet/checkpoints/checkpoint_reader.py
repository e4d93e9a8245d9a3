"""Reads the facts of a checkpoint from its config and the headers of its weight files.

The weights themselves are never read. A config alone is enough for a plan; sizes are then estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparkfleet.checkpoints.arch.attention_layers import group_layers, prompt_layers, read_layers
from sparkfleet.checkpoints.arch.config_summary import check_published, expanded
from sparkfleet.checkpoints.arch.context_length import max_positions
from sparkfleet.checkpoints.arch.draft_layers import draft_block, dspark_block, mtp_layers_declared
from sparkfleet.checkpoints.arch.feed_forward import Experts, FeedForwardWidths, read_experts, read_widths
from sparkfleet.checkpoints.arch.layers import LayerGroup
from sparkfleet.checkpoints.arch.model_families import PLAIN, Family, family_of
from sparkfleet.checkpoints.arch.nemotron_nas import unrolled
from sparkfleet.checkpoints.arch.other_tasks import refuse_other_tasks
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint, Sampling
from sparkfleet.checkpoints.gguf_checkpoint import is_gguf, read_gguf_checkpoint
from sparkfleet.checkpoints.io.checkpoint_files import (
    CONTAINER,
    WeightFiles,
    read_beside,
    read_config,
    read_tensors,
)
from sparkfleet.checkpoints.io.config_json import Config, language_model
from sparkfleet.checkpoints.io.hub_cache import name_of
from sparkfleet.checkpoints.io.licenses import read_license
from sparkfleet.checkpoints.quantization.named_quantization import named_quantization
from sparkfleet.checkpoints.quantization.quantization_reader import read_quantization
from sparkfleet.checkpoints.quantization.quantization_scope import Scope
from sparkfleet.checkpoints.sizes.consistency import check_config, read_shapes
from sparkfleet.checkpoints.sizes.parameters import count_parameters
from sparkfleet.checkpoints.sizes.size_estimate import (
    check_claim,
    estimated_portions,
    model_dtype,
    scope_of,
)
from sparkfleet.checkpoints.sizes.vision_tower import is_multimodal, vision_parameters, vision_section
from sparkfleet.checkpoints.sizes.weight_map import (
    WeightMap,
    check_complete,
    check_grouped_attention,
    count_mtp,
    map_weights,
)
from sparkfleet.errors import FactError
from sparkfleet.specs.model_name import model_name


def read_checkpoint(source: Path, *, id: str | None = None) -> Checkpoint:  # noqa: A002  # it is the value's own name
    """Reads the facts of a checkpoint in a directory.

    Args:
        source: has config.json, and usually safetensors files. Without any weights the config alone is read. Or it has
            GGUF models, or is a GGUF file.
        id: its name, with the tag of a GGUF model; None takes it from the Hub's cache, or the directory.

    Raises:
        FactError: a file is missing, damaged, hostile, or of a kind that is not supported; or it writes no text.
    """
    if is_gguf(source, model_name(id or "").tag):
        return read_gguf_checkpoint(source, id=id)
    config = read_config(source)
    refuse_other_tasks(config, source)
    outer = unrolled(expanded(config))
    found = read_tensors(source)
    name, revision = name_of(source)
    if found is None:
        facts = _from_config(outer, id or name, read_beside(source, "hf_quant_config.json"))
    else:
        facts = _from_weights(outer, id or name, source, found)
    license_, sampling = read_license(source), _sampling(read_beside(source, "generation_config.json"))
    path = source if found is not None else None
    return facts.model_copy(
        update={"revision": revision, "path": path, "license": license_, "sampling": sampling}
    )


def checkpoint_from_config(
    config: Mapping[str, object],
    *,
    id: str,  # noqa: A002  # it is the value's own name
    hf_quant_config: Mapping[str, object] | None = None,
    quantization: str | None = None,
) -> Checkpoint:
    """The facts of a checkpoint from its config alone; sizes are estimates.

    Args:
        config: the contents of config.json, or a summary of it.
        id: the model's name.
        hf_quant_config: the contents of the file of that name, if there is one.
        quantization: a short name ("nvfp4", "fp8", "bf16", …) that overrides the config.

    Raises:
        FactError: the config is damaged or incomplete, or of an architecture that is not known.
    """
    beside = None if hf_quant_config is None else Config(hf_quant_config, f"{id}: hf_quant_config.json")
    outer = unrolled(expanded(Config(config, f"{id}: config.json")))
    return _from_config(outer, id, beside, quantization)


def _from_config(
    outer: Config, name: str, beside: Config | None, quantization: str | None = None
) -> Checkpoint:
    family, config = _known_family(language_model(outer))
    layers = read_layers(config, family)
    scope = scope_of(config, family, layers)
    if quantization is None:
        stored = read_quantization(config, beside, scope)
        check_claim(name, stored, outer.where)
    else:
        stored = named_quantization(quantization, scope)
    parameters = count_parameters(config, family, layers)
    check_published(config, sum(count for part, count in parameters.items() if part is not Part.MTP))
    seen = vision_parameters(outer.under(config.values))
    parameters[Part.VISION] = seen or 0
    weights = estimated_portions(parameters, stored, model_dtype(config))
    facts = _common(outer, config, name, layers, scope)
    return facts.model_copy(
        update={
            "weights": weights,
            "bytes_on_disk": sum(portion.bytes for portion in weights),
            "widths": read_widths(config, family, layers),
            "quantization": stored,
            "unsized": (Part.VISION,) if facts.declares_vision and seen is None else (),
        }
    )


def _from_weights(outer: Config, name: str, source: Path, found: WeightFiles) -> Checkpoint:
    tensors, size, largest = found
    config = language_model(outer)
    family = family_of(config)
    if family is not None:
        config = config.under(family.unsaid)
    layers = read_layers(config, family) if family is not None else _plain_layers(config)
    scope = scope_of(config, family, layers)
    stored = read_quantization(config, read_beside(source, "hf_quant_config.json"), scope)
    shapes, experts = read_shapes(tensors, scope.names), read_experts(config).routed
    if family is None:
        check_grouped_attention(tensors, scope.names, shapes.keys, layers, outer.where)
    weights = map_weights(tensors, scope.names, stored, str(source))
    check_complete(weights, layers, frozenset().union(*scope.members.values()), experts, str(source))
    check_config(
        shapes,
        layers,
        hidden=config.integer("hidden_size"),
        experts=experts,
        mtp_layers=mtp_layers_declared(config),
        where=outer.where,
    )
    tied = _tied(config, weights)
    kept = [portion for portion in weights.portions if not (tied and portion.part is Part.HEAD)]
    return _common(outer, config, name, layers, scope).model_copy(
        update={
            "weights_known": True,
            "bytes_on_disk": size,
            "largest_file": largest,
            "weights": tuple(kept),
            "widths": None if family is None else _declared_widths(config, family, layers),
            "vision": weights.has(Part.VISION),
            "mtp_layers": count_mtp(weights, mtp_layers_declared(config)),
            "quantization": stored,
            "tie_word_embeddings": tied,
        }
    )


def _declared_widths(
    config: Config, family: Family, layers: tuple[LayerGroup, ...]
) -> FeedForwardWidths | None:
    """The widths of feed-forwards; None if the config lacks one: the sizes of these weights do not need it."""
    try:
        return read_widths(config, family, layers)
    except FactError:
        return None


def _common(
    outer: Config, config: Config, name: str, layers: tuple[LayerGroup, ...], scope: Scope
) -> Checkpoint:
    """Fields that every config has."""
    experts: Experts = read_experts(config)
    moe = set(scope.members[Part.EXPERTS]) if experts.routed else set()
    return Checkpoint(
        id=name,
        architectures=outer.texts("architectures") or (),
        model_type=outer.text("model_type") or config.text("model_type"),
        weights_known=False,
        bytes_on_disk=0,
        weights=(),
        layers=group_layers(layers),
        moe_layers=len(moe),
        dense_layers=len(set(scope.members[Part.MLP]) - moe),
        prompt_layers=prompt_layers(config),
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        max_positions=max_positions(config),
        experts=experts.routed,
        experts_per_token=experts.per_token,
        shared_experts=experts.shared,
        vision=None,
        declares_vision=_declares_vision(outer),
        mtp_layers=None,
        declared_mtp_layers=mtp_layers_declared(config),
        dspark_block=dspark_block(outer.over(config.values)),
        draft_block=draft_block(outer.over(config.values)),
        dtype=model_dtype(config),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        needs_remote_code=outer.has("auto_map"),
    )


def _known_family(config: Config) -> tuple[Family, Config]:
    """The family, and the config completed by the family's defaults."""
    family = family_of(config)
    if family is None:
        raise FactError(
            f"{config.where}: the architecture {config.text('model_type')} is not known.",
            means="Its sizes cannot be derived from the config alone; from weights they can, if it is plain attention.",
            do="Give a directory with its weights (`hf download`), or choose another model.",
        )
    return family, config.under(family.unsaid)


def _plain_layers(config: Config) -> tuple[LayerGroup, ...]:
    """Layers of an architecture that is not known, if its config has the keys of plain attention."""
    try:
        return read_layers(config, PLAIN)
    except FactError as error:
        raise FactError(
            f"{config.where}: the architecture {config.text('model_type')} is not known, and its config lacks the"
            " keys of plain attention.",
            means=error.what,
            do=f"{CONTAINER}, or choose another model.",
        ) from None


def _declares_vision(outer: Config) -> bool:
    """True if there is a section for a vision tower, or (in a summary) the class name of a multimodal model."""
    named = any(is_multimodal(name) for name in outer.texts("architectures") or ())
    return vision_section(outer) is not None or named


def _tied(config: Config, weights: WeightMap) -> bool:
    """True if the head is tied: it is missing from the weights, or declared as tied (then a stored one is not loaded)."""
    return config.flag("tie_word_embeddings") or not weights.has(Part.HEAD)


def _sampling(config: Config | None) -> Sampling:
    """The sampling defaults as far as they are numbers: the engine reads them itself, and no plan depends on them."""
    given = config.values if config is not None else {}
    temperature, top_p, top_k = (_number(given.get(name)) for name in ("temperature", "top_p", "top_k"))
    whole = int(top_k) if top_k is not None and top_k.is_integer() else None
    return Sampling(temperature=temperature, top_p=top_p, top_k=whole)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        return None
    return float(value)
