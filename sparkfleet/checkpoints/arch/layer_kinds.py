"""Reads the kind of each layer of a model from its config: full or sliding attention, a recurrent state, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.arch.model_families import Family
from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config, per_layer
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.errors import FactError

KIND_OF_TYPE: Mapping[str, LayerKind] = {
    "full_attention": LayerKind.FULL,
    "indexed_attention": LayerKind.FULL,
    "deepseek_sparse_attention": LayerKind.FULL,
    "sparse_attention": LayerKind.FULL,
    "minimax_m3_sparse": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.SLIDING,
    "linear_attention": LayerKind.LINEAR,
    "mamba": LayerKind.LINEAR,
    "conv": LayerKind.LINEAR,
    "moe": LayerKind.NONE,
    "mlp": LayerKind.NONE,
}
"""The values of `layer_types` and `layers_block_type` in transformers 5.19."""

KIND_OF_LETTER: Mapping[str, LayerKind] = {
    "*": LayerKind.FULL,
    "M": LayerKind.LINEAR,
    "E": LayerKind.NONE,
    "-": LayerKind.NONE,
}
"""The letters of Nemotron-H's `hybrid_override_pattern`."""

SPARSE_LLAMA4_PERIOD = 4
"""Every fourth layer of Llama 4 attends to all tokens, the others within a chunk."""

ATTENDING = ("attn_layer_indices", "full_attn_idxs")
"""Keys that list the attention layers; all others keep a state (Bamba, the first LFM2)."""

PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")


def layer_count(config: Config) -> int:
    """Number of decoder layers, feed-forward layers of Nemotron-H included."""
    pattern = config.text("hybrid_override_pattern")
    types = config.texts("layers_block_type") or config.texts("layer_types")
    found = len(pattern) or (len(types) if types else 0)
    declared = config.integer_or_none("num_hidden_layers", "n_layer", low=1, high=MOST_LAYERS)
    if declared is None and not 0 < found <= MOST_LAYERS:
        raise config.missing("num_hidden_layers")
    return found if declared is None else declared


def layer_kinds(config: Config, family: Family) -> tuple[LayerKind, ...]:
    """Full, sliding or linear (or none) for every layer."""
    layers = layer_count(config)
    named = [LayerKind.FULL] * layers if family.mixer == "beside-mamba" else _named_kinds(config)
    if named is not None:
        per_layer(named, layers, config, "the list of layer types")
        return tuple(named[:layers])
    return tuple(_kind_by_rule(config, family, index) for index in range(layers))


def _named_kinds(config: Config) -> Sequence[LayerKind] | None:
    """Per-layer values of the config, in any of its spellings."""
    letters = config.text("hybrid_override_pattern")
    if letters:
        return [_known(KIND_OF_LETTER, letter, config) for letter in letters]
    types = config.texts("layer_types") or config.texts("layers_block_type")
    if types:
        return [_known(KIND_OF_TYPE, name, config) for name in types]
    sliding = config.integers("hybrid_layer_pattern", high=1)
    if sliding:
        return [LayerKind.SLIDING if value else LayerKind.FULL for value in sliding]
    return _attending_kinds(config) or _kimi_kinds(config)


def _attending_kinds(config: Config) -> Sequence[LayerKind] | None:
    attending = next((found for key in ATTENDING if (found := config.integers(key, high=MOST_LAYERS))), None)
    if attending is None:
        return None
    chosen = set(attending)
    return [LayerKind.FULL if index in chosen else LayerKind.LINEAR for index in range(layer_count(config))]


def _known(kinds: Mapping[str, LayerKind], name: str, config: Config) -> LayerKind:
    kind = kinds.get(name)
    if kind is None:
        raise FactError(
            f"{config.where}: the layer type {shown(name)} is not known.",
            means="The memory per token of such a layer cannot be derived.",
            do=f"Choose a model whose layer types are all known: {', '.join(kinds)}.",
        )
    return kind


def _kimi_kinds(config: Config) -> Sequence[LayerKind] | None:
    """Kimi Linear numbers its layers from 1 in two lists."""
    section = config.section("linear_attn_config")
    linear = section.integers("kda_layers", high=MOST_LAYERS) if section else None
    if linear is None:
        return None
    chosen = set(linear)
    return [
        LayerKind.LINEAR if index + 1 in chosen else LayerKind.FULL for index in range(layer_count(config))
    ]


def _kind_by_rule(config: Config, family: Family, index: int) -> LayerKind:
    if family.mixer == "mamba-1":
        period = config.integer("attn_layer_period", high=MOST_LAYERS)
        attends = index % period == config.integer("attn_layer_offset", low=0, high=MOST_LAYERS)
        return LayerKind.FULL if attends else LayerKind.LINEAR
    if family.mixer in ("mamba", "short-conv"):
        raise config.missing("hybrid_override_pattern", "layers_block_type")
    if config.has("layer_group_size"):
        return _kind_in_group(config, index)
    if family.mixer in ("delta", "kimi-delta"):
        if not config.has("full_attention_interval"):
            raise config.missing("layer_types", "full_attention_interval")
        interval = config.integer("full_attention_interval", high=MOST_LAYERS)
        return LayerKind.FULL if (index + 1) % interval == 0 else LayerKind.LINEAR
    if config.has("attn_type_list"):
        _only_softmax(config)
    return LayerKind.SLIDING if _slides(config, family, index) else LayerKind.FULL


def _kind_in_group(config: Config, index: int) -> LayerKind:
    """Ling 3: the last layer of each group attends, and so does every layer of an incomplete group."""
    size = config.integer("layer_group_size", high=MOST_LAYERS)
    whole = layer_count(config) // size * size
    return LayerKind.FULL if (index + 1) % size == 0 or index >= whole else LayerKind.LINEAR


def _slides(config: Config, family: Family, index: int) -> bool:
    if family.sliding == "listed":
        raise config.missing("layer_types")
    if family.sliding == "chunked":
        return (index + 1) % SPARSE_LLAMA4_PERIOD != 0
    if not config.has("sliding_window") or family.sliding == "never":
        return False
    if family.sliding == "flagged":
        return config.flag("use_sliding_window") and index >= config.integer_or(0, "max_window_layers")
    if family.sliding == "pattern":
        return (index + 1) % config.integer(*PATTERNS) != 0
    return True


def _only_softmax(config: Config) -> None:
    if 0 in (config.integers("attn_type_list", high=1) or ()):
        raise FactError(
            f"{config.where}: attn_type_list has layers with lightning attention.",
            means="The memory per sequence of such a layer is not known.",
            do="Choose another model.",
        )
