"""Facts of a checkpoint: its architecture and sizes, from its config and the headers of its weight files.

The weights themselves are never read. A config alone is enough for a plan; then `weights_known` is false, sizes are
estimates, and the presence of a vision tower or an MTP head is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from sparkfleet.checkpoints.arch.attention_layers import group_layers, prompt_layers, read_layers
from sparkfleet.checkpoints.arch.config_summary import check_published, expanded
from sparkfleet.checkpoints.arch.context_length import max_positions
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind, LinearState
from sparkfleet.checkpoints.arch.model_families import PLAIN, Family, family_of
from sparkfleet.checkpoints.arch.nemotron_nas import unrolled
from sparkfleet.checkpoints.arch.weight_parts import Part, PartNames, Portion
from sparkfleet.checkpoints.io.checkpoint_files import read_beside, read_config, read_tensors
from sparkfleet.checkpoints.io.config_json import Config, language_model
from sparkfleet.checkpoints.io.hub_cache import hub_cache, name_of, resolve
from sparkfleet.checkpoints.io.licenses import License, read_license
from sparkfleet.checkpoints.io.safetensors_header import Tensor
from sparkfleet.checkpoints.quantization.formats import Cover, Quantization, Scheme
from sparkfleet.checkpoints.quantization.quantization_reader import named_quantization, read_quantization
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS, Scope
from sparkfleet.checkpoints.sizes.consistency import check_config, read_shapes
from sparkfleet.checkpoints.sizes.parameters import (
    Experts,
    count_parameters,
    draft_block,
    dspark_block,
    mtp_layers_declared,
    read_experts,
)
from sparkfleet.checkpoints.sizes.size_estimate import (
    check_claim,
    estimated_portions,
    model_dtype,
    resized,
    scope_of,
)
from sparkfleet.checkpoints.sizes.vision_tower import vision_parameters, vision_section
from sparkfleet.checkpoints.sizes.weight_map import (
    WeightMap,
    check_complete,
    check_grouped_attention,
    count_mtp,
    map_weights,
)
from sparkfleet.errors import FactError
from sparkfleet.values import Value

__all__ = [
    "Checkpoint",
    "Cover",
    "LayerGroup",
    "LayerKind",
    "License",
    "LinearState",
    "Part",
    "Portion",
    "Quantization",
    "Sampling",
    "Scheme",
    "checkpoint_from_config",
    "hub_cache",
    "read_checkpoint",
    "resolve",
]

K = TypeVar("K")

BESIDE_THE_MODEL = (Part.MTP, Part.DRAFT)
"""Parts that only draft tokens; they are not counted in the size that a model is known by."""

NOT_READ_PER_TOKEN = (*BESIDE_THE_MODEL, Part.VISION)
NGRAM_TABLES = ("qwen4_exp", "deepseek_v41")
"""Types of models whose layers look n-grams up in tables (vLLM, config/engram.py)."""


class Sampling(Value):
    """Sampling defaults of `generation_config.json`, which engines use if a request sets none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class Checkpoint(Value):
    """A set of weights, or the config of one."""

    id: str
    """Hub id, or directory."""
    revision: str | None = None
    origin: str = ""
    """Source of the sizes, for people; "" if they come from files on this machine or a node, or are known by name."""
    path: Path | None = None
    """None if only a config is known."""
    architectures: tuple[str, ...]
    model_type: str
    weights_known: bool
    """False: sizes are estimated from the config."""
    bytes_on_disk: int
    """Bytes of the weight files."""
    weights: tuple[Portion, ...]
    """Everything that an engine loads, by part and format."""
    unsized: tuple[Part, ...] = ()
    """Parts that the config declares without their size; empty if the weights are known."""
    layers: tuple[LayerGroup, ...]
    """Decoder layers, in groups of equal ones."""
    moe_layers: int = 0
    """Layers whose feed-forward is a mixture of experts."""
    dense_layers: int = 0
    """Layers with a feed-forward and no experts."""
    prompt_layers: int | None = None
    """Decoder layers that every token of a prompt passes; None: all. DeepSeek V4.1 has others, which keep no latents."""
    hidden_size: int
    vocab_size: int
    max_positions: int | None
    """Longest context of the model, tokens; None if the config does not declare it."""
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    vision: bool | None
    """True if the weights include a vision tower; None if they are not known."""
    declares_vision: bool
    mtp_layers: int | None
    """Layers of multi-token prediction (MTP, NEXTN) among the weights; None if they are not known."""
    declared_mtp_layers: int
    dspark_block: int | None = None
    """Draft tokens of a block of the DSpark stages in its own weights, by its config; None if it declares none."""
    draft_block: int | None = None
    """Tokens that a drafter of this kind drafts at once (its block), by its config; None if it is no such drafter."""
    quantization: Quantization | None = None
    dtype: str
    """Precision of the weights that are not quantised: "bfloat16", "float16" or "float32"."""
    tie_word_embeddings: bool
    needs_remote_code: bool
    """The config refers to Python files of its own (`auto_map`), for engines that do not know the architecture."""
    license: License = License()
    sampling: Sampling = Sampling()

    def parameters_by_part(self) -> dict[Part, int]:
        """Parameters of each part that the model has."""
        return _summed((portion.part, portion.parameters) for portion in self.weights)

    def bytes_by_part(self) -> dict[Part, int]:
        """Bytes of each part that the model has, scales included."""
        return _summed((portion.part, portion.bytes) for portion in self.weights)

    @property
    def total_parameters(self) -> int:
        """Parameters as a model's size is usually given: all but MTP and draft heads."""
        return sum(p.parameters for p in self.weights if p.part not in BESIDE_THE_MODEL)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token of text is multiplied with, without the one row of the embedding that it reads."""
        return round(sum(p.parameters * self.active_share(p.part) for p in self.weights))

    @property
    def active_bytes(self) -> int:
        """Bytes of weights that one token of text reads."""
        return round(sum(p.bytes * self.active_share(p.part) for p in self.weights))

    def active_share(self, part: Part) -> float:
        """The share of a part that one token of text reads; a tied embedding is read completely, as the head.

        A token reads one row of each further lookup table (the per-layer embeddings of Gemma's E-models).
        """
        if part in NOT_READ_PER_TOKEN:
            return 0.0
        if part is Part.EMBEDDING:
            tables = sum(portion.parameters for portion in self.weights if portion.part is part)
            head = self.vocab_size * self.hidden_size
            return min(1.0, head / max(1, tables)) if self.tie_word_embeddings else 0.0
        return self.experts_per_token / self.experts if part is Part.EXPERTS and self.experts else 1.0

    @property
    def table_bytes(self) -> int:
        """Bytes of the n-gram tables beside the embedding, of which a token reads a few rows; 0 if there are none."""
        if self.model_type not in NGRAM_TABLES:
            return 0
        found = sorted(
            (one for one in self.weights if one.part is Part.EMBEDDING),
            key=lambda one: -one.bytes / max(1, one.parameters),
        )
        left, size = self.vocab_size * self.hidden_size, sum(one.bytes for one in found)
        for one in found:  # the embedding itself is stored with the most bits
            taken = min(left, one.parameters)
            left -= taken
            size -= round(one.bytes * taken / max(1, one.parameters))
        return max(0, size)

    def layer_counts(self) -> dict[LayerKind, int]:
        """Decoder layers by kind."""
        return _summed((group.kind, group.layers) for group in self.layers)

    def kv_dtype(self, dtype: str = "auto") -> str:
        """The KV cache dtype; "auto" is the dtype that the checkpoint has scales for, or else 16 bits."""
        if dtype != "auto":
            return dtype
        return (self.quantization.kv_cache if self.quantization else None) or "bf16"

    def kv_bytes_per_token(self, *, tp: int = 1, dtype: str = "auto", kind: LayerKind | None = None) -> float:
        """Bytes that one token adds to the KV cache of one rank while no window is full, in all layers or those of a kind.

        Sliding layers stop growing at their window: see `kv_bytes_per_sequence`. KV heads are copied if `tp`
        exceeds their number; a latent (MLA) is stored completely on every rank.

        Raises:
            FactError: an unknown dtype.
        """
        name = self.kv_dtype(dtype)
        chosen = (group for group in self.layers if kind is None or group.kind is kind)
        return sum(group.layers * group.token_bytes(tp=tp, dtype=name) for group in chosen)

    def kv_bytes_per_sequence(self, tokens: int, *, tp: int = 1, dtype: str = "auto") -> int:
        """Bytes of KV cache of one sequence of `tokens` tokens on one rank, with sliding layers capped at their window."""
        name = self.kv_dtype(dtype)
        return round(sum(group.sequence_bytes(tokens, tp=tp, dtype=name) for group in self.layers))

    def state_bytes_per_sequence(self, *, tp: int = 1, dtype: str | None = None) -> int:
        """Bytes of recurrent and convolution state of one sequence on one rank, in all linear layers.

        Args:
            tp: ranks that share the heads.
            dtype: of the recurrent state; None: the checkpoint's own.
        """
        states = ((group.layers, group.state) for group in self.layers if group.state is not None)
        return sum(layers * state.bytes(tp=tp, dtype=dtype) for layers, state in states)

    def sized(self, total: float) -> Checkpoint:
        """The same weights with `total` bytes altogether.

        The parts that quantisers treat in different ways change first, because the rest of a published size shows how they
        are stored; if that gives no precision that exists, all parts change.
        """
        weights = resized(self.weights, total)
        return self.model_copy(
            update={"weights": weights, "bytes_on_disk": sum(portion.bytes for portion in weights)}
        )

    def requantized(self, name: str) -> Checkpoint:
        """The same model as it would be in another quantisation ("nvfp4", "fp8", "awq", …), sizes estimated.

        Raises:
            FactError: an unknown quantisation.
        """
        parameters = self.parameters_by_part()
        members = {part: frozenset({0}) for part in LAYER_PARTS if parameters.get(part)}
        quantization = named_quantization(name, Scope(PartNames(1), members))
        weights = estimated_portions(parameters, quantization, self.dtype)
        size = sum(portion.bytes for portion in weights)
        changes = {
            "quantization": quantization,
            "weights": weights,
            "bytes_on_disk": size,
            "weights_known": False,
        }
        return self.model_copy(update={**changes, "path": None, "vision": None, "mtp_layers": None})


def read_checkpoint(source: Path, *, id: str | None = None) -> Checkpoint:  # noqa: A002  # it is the value's own name
    """Reads the facts of a checkpoint in a directory.

    Args:
        source: has config.json, and usually safetensors files. Without any weights the config alone is read.
        id: its name; None takes it from the Hub's cache, or the directory.

    Raises:
        FactError: a file is missing, damaged, hostile, or of a kind that is not supported.
    """
    outer = unrolled(expanded(read_config(source)))
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
            "quantization": stored,
            "unsized": (Part.VISION,) if facts.declares_vision and seen is None else (),
        }
    )


def _from_weights(outer: Config, name: str, source: Path, found: tuple[list[Tensor], int]) -> Checkpoint:
    tensors, size = found
    config = language_model(outer)
    family = family_of(config)
    if family is not None:
        config = config.under(family.unsaid)
    layers = read_layers(config, family or PLAIN)
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
            "weights": tuple(kept),
            "vision": weights.has(Part.VISION),
            "mtp_layers": count_mtp(weights, mtp_layers_declared(config)),
            "quantization": stored,
            "tie_word_embeddings": tied,
        }
    )


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
            means="Its sizes cannot be derived from the config alone.",
            do="Give the directory of the checkpoint.",
        )
    return family, config.under(family.unsaid)


def _declares_vision(outer: Config) -> bool:
    """True if there is a section for a vision tower, or (in a summary) the class name of a multimodal model."""
    named = any(name.endswith("ForConditionalGeneration") for name in outer.texts("architectures") or ())
    return vision_section(outer) is not None or named


def _tied(config: Config, weights: WeightMap) -> bool:
    """True if the head is tied: it is missing from the weights, or declared as tied (then a stored one is not loaded)."""
    return config.flag("tie_word_embeddings") or not weights.has(Part.HEAD)


def _sampling(config: Config | None) -> Sampling:
    if config is None:
        return Sampling()
    return Sampling(
        temperature=config.number_or_none("temperature", low=0, high=100),
        top_p=config.number_or_none("top_p", low=0, high=1),
        top_k=config.integer_or_none("top_k", low=-1),
    )


def _summed(pairs: Iterable[tuple[K, int]]) -> dict[K, int]:
    sums: Counter[K] = Counter()
    for key, value in pairs:
        sums[key] += value
    return dict(sums)
