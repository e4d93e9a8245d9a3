"""How many parameters a model has, from its config alone, part by part.

The formulas count matrices and leave out biases and the like; against the real models (transformers 5.19, built without
weights) they are within 1 % for every family in `families.py` (`tests/facts/test_parameters.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sparkfleet.facts.config_json import MOST_LAYERS, Config, per_layer
from sparkfleet.facts.families import Family
from sparkfleet.facts.layers import LayerGroup, LayerKind
from sparkfleet.facts.parts import Part

Sizes = Counter[Part]

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "num_routed_experts", "moe_num_experts")
PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
)
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_SIZE = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Not `num_mtp_modules`: MiniMax names modules there that it does not publish."""
MOST_EXPERTS = 1 << 16
HYPER_CONNECTIONS = 2
"""Attention and feed-forward have one each."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a model; all 0 where it has none."""

    routed: int = 0
    per_token: int = 0
    shared: int = 0


def read_experts(config: Config) -> Experts:
    """How many experts there are, and how many serve a token."""
    routed = config.integer_or(0, *EXPERTS, high=MOST_EXPERTS)
    # Gemma 4 names a number of experts in its dense models as well, and switches them off.
    if not routed or config.values.get("enable_moe_block") is False:
        return Experts()
    per_token = config.integer(*PER_TOKEN, high=routed)
    shared = config.integer_or_none(*SHARED, high=MOST_EXPERTS)
    if shared is None:
        shared = 1 if config.integer_or(0, *SHARED_SIZE) else 0
    return Experts(routed, per_token, shared)


def mtp_layers_declared(config: Config) -> int:
    """How many layers of multi-token prediction the config speaks of, whether or not their weights are there."""
    return config.integer_or(0, *MTP_LAYERS, high=MOST_LAYERS)


def has_experts(config: Config, family: Family, index: int, kind: LayerKind) -> bool:
    """Whether the feed-forward of a layer is a mixture of experts."""
    if not read_experts(config).routed:
        return False
    if family.mixer == "mamba":
        return kind is LayerKind.NONE and _block_type(config, index) == "moe"
    types = config.texts("mlp_layer_types")
    if types:
        per_layer(types, index + 1, config, "mlp_layer_types")
        return types[index] != "dense"
    return _has_experts_by_number(config, family, index)


def has_dense(config: Config, family: Family, index: int, kind: LayerKind) -> bool:
    """Whether a layer has a dense feed-forward."""
    if family.mixer == "mamba":
        return kind is LayerKind.NONE and _block_type(config, index) == "mlp"
    return family.dense_beside_experts or not has_experts(config, family, index, kind)


def count_parameters(config: Config, family: Family, layers: Sequence[LayerGroup]) -> Sizes:
    """Parameters by part, of everything but vision.

    Raises:
        FactError: a key is missing or wrong.
    """
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    sizes: Sizes = Counter({Part.EMBEDDING: vocab * hidden + _lookup_tables(config, layers)})
    if not config.flag("tie_word_embeddings"):
        sizes[Part.HEAD] = vocab * hidden
    for index, layer in enumerate(layers):
        sizes += _layer(config, family, layer, index)
    sizes[Part.MTP] += _mtp(config, family, layers)
    return sizes


def _layer(config: Config, family: Family, layer: LayerGroup, index: int) -> Sizes:
    hidden = config.integer("hidden_size")
    sizes = _mixer(config, family, layer)
    sizes[Part.NORMS] += hidden if layer.kind is LayerKind.NONE else 2 * hidden
    if has_dense(config, family, index, layer.kind):
        sizes[Part.MLP] += _matrices(family) * hidden * _dense_size(config, family, layer)
    if has_experts(config, family, index, layer.kind):
        sizes += _mixture(config, family)
    sizes[Part.OTHER] += _between_layers(config)
    return sizes


def _matrices(family: Family) -> int:
    return 3 if family.gated else 2


def _dense_size(config: Config, family: Family, layer: LayerGroup) -> int:
    size = config.integer(family.dense_size)
    return 2 * size if layer.kv_heads == 0 and config.flag("use_double_wide_mlp") else size


def _mixture(config: Config, family: Family) -> Sizes:
    """Routed and shared experts, and the router, of one layer."""
    experts, hidden = read_experts(config), config.integer("hidden_size")
    size = config.integer(family.expert_size, "moe_intermediate_size")
    inside = config.integer_or_none("moe_latent_size", "routed_expert_hidden_size", low=1) or hidden
    shared = config.integer_or(0, *SHARED_SIZE) or experts.shared * size
    sizes: Sizes = Counter(
        {
            Part.EXPERTS: experts.routed * _matrices(family) * inside * size,
            Part.SHARED_EXPERTS: _matrices(family) * hidden * shared if experts.shared else 0,
            Part.ROUTER: experts.routed * hidden,
        }
    )
    if inside != hidden:
        sizes[Part.MLP] += 2 * hidden * inside
    return sizes


def _mixer(config: Config, family: Family, layer: LayerGroup) -> Sizes:
    if layer.kind is LayerKind.NONE:
        return Counter()
    if layer.state is not None:
        return Counter({Part.LINEAR_ATTENTION: _linear(config, family, layer)})
    if family.mixer == "compressed":
        return Counter({Part.ATTENTION: _compressed(config, layer)})
    if layer.kind is LayerKind.MLA:
        return Counter({Part.ATTENTION: _latent(config, layer) + _indexer(config, layer)})
    return Counter({Part.ATTENTION: _grouped(config, family, layer) + _indexer(config, layer)})


def _grouped(config: Config, family: Family, layer: LayerGroup) -> int:
    hidden = config.integer("hidden_size")
    queries = layer.query_heads * layer.key_dim
    gate = queries if family.output_gate else 0
    shared = layer.kind is LayerKind.FULL and config.flag("attention_k_eq_v")
    keys_values = layer.kv_heads * (layer.key_dim + (0 if shared else layer.value_dim))
    return hidden * (queries + gate + keys_values + layer.query_heads * layer.value_dim)


def _latent(config: Config, layer: LayerGroup) -> int:
    hidden, heads = config.integer("hidden_size"), layer.query_heads
    nope, value = config.integer("qk_nope_head_dim"), config.integer("v_head_dim")
    query = heads * (nope + config.integer("qk_rope_head_dim", low=0))
    rank = config.integer_or_none("q_lora_rank", low=1)
    down = hidden * rank + rank * query if rank else hidden * query
    gate = hidden * heads * value if config.flag("mla_use_output_gate") else 0
    up = config.integer("kv_lora_rank") * heads * (nope + value)
    return down + hidden * layer.key_dim + up + heads * value * hidden + gate


def _indexer(config: Config, layer: LayerGroup) -> int:
    """What chooses the tokens that sparse attention reads."""
    if not layer.index_dim:
        return 0
    hidden = config.integer("hidden_size")
    sparse = config.section("sparse_attention_config")
    if sparse is not None:
        return hidden * layer.index_dim * (1 + sparse.integer_or(1, "sparse_num_index_heads", high=1 << 16))
    heads = config.integer("index_n_heads", "indexer_n_heads", high=1 << 16)
    rank = config.integer_or_none("q_lora_rank", low=1) or hidden
    return rank * heads * layer.index_dim + hidden * layer.index_dim + hidden * heads


def _compressed(config: Config, layer: LayerGroup) -> int:
    """DeepSeek V4: low-rank queries, one latent head, grouped low-rank output, and what compresses and indexes."""
    hidden, heads, dim = config.integer("hidden_size"), layer.query_heads, layer.key_dim
    rank, out = config.integer("q_lora_rank"), config.integer("o_lora_rank")
    groups = config.integer("o_groups", high=1 << 16)
    size = hidden * rank + rank * heads * dim + hidden * dim + heads * dim * out + groups * out * hidden
    if layer.kind is LayerKind.MLA:
        size += 2 * hidden * dim * (2 if layer.index_dim else 1)
    if layer.index_dim:
        index_heads = config.integer("index_n_heads", high=1 << 16)
        size += rank * index_heads * layer.index_dim + 4 * hidden * layer.index_dim + hidden * index_heads
    return size


def _linear(config: Config, family: Family, layer: LayerGroup) -> int:
    state, hidden = layer.state, config.integer("hidden_size")
    assert state is not None
    values = state.heads * state.value_dim
    convolution = state.conv_channels * state.conv_kernel
    if family.mixer == "mamba":
        return hidden * (values + state.conv_channels + state.heads) + convolution + values * hidden
    if family.mixer == "kimi-delta":
        return _kimi(config, values, state.heads, state.value_dim) + convolution
    # Gated DeltaNet: queries, keys and values as they enter the convolution; a gate; two numbers per head; the output.
    return hidden * (state.conv_channels + 2 * values + 2 * state.heads) + convolution


def _kimi(config: Config, values: int, heads: int, dim: int) -> int:
    hidden = config.integer("hidden_size")
    section = config.section("linear_attn_config")
    low_rank = hidden * dim + dim * values
    gate = hidden * values if section and section.flag("use_full_rank_gate") else low_rank
    return hidden * (4 * values + heads) + low_rank + gate


def _between_layers(config: Config) -> int:
    """What surrounds a layer: projections of per-layer embeddings, or of the parallel streams of hyper-connections."""
    hidden = config.integer("hidden_size")
    if config.integer_or(0, "hidden_size_per_layer_input"):
        return 3 * hidden * config.integer("hidden_size_per_layer_input")
    if config.has("hc_lowrank"):
        streams = config.integer("hc_count", high=1 << 10)
        return HYPER_CONNECTIONS * hidden * streams * (2 * config.integer("hc_lowrank") + streams)
    streams = config.integer_or(0, "hc_mult", high=1 << 10)
    return HYPER_CONNECTIONS * hidden * streams * (streams * streams + 2 * streams)


def _lookup_tables(config: Config, layers: Sequence[LayerGroup]) -> int:
    """Tables of which a token reads one row: per-layer embeddings of Gemma's E-models, n-grams of Qwen3.8-Flash-Next."""
    per_layer_size = config.integer_or(0, "hidden_size_per_layer_input")
    size = per_layer_size and config.integer(
        "vocab_size_per_layer_input", "vocab_size"
    ) * per_layer_size * len(layers)
    places = config.integers("ple_layer_ids", high=MOST_LAYERS) or ()
    if places:
        size += len(places) * config.integer("ngram_vocab_size_base") * config.integer("ple_embed_dim")
    return size


def _mtp(config: Config, family: Family, layers: Sequence[LayerGroup]) -> int:
    """Each MTP layer is a decoder layer with attention and feed-forward, and a projection of two inputs to one."""
    declared = mtp_layers_declared(config)
    if not declared:
        return 0
    hidden = config.integer("hidden_size")
    attending = [layer for layer in layers if layer.kind not in (LayerKind.NONE, LayerKind.LINEAR)]
    sizes = _mixer(config, family, attending[-1]) if attending else Counter()
    if read_experts(config).routed:
        sizes += _mixture(config, family)
    else:
        sizes[Part.MLP] += _matrices(family) * hidden * config.integer(family.dense_size)
    return declared * (sum(sizes.values()) + 2 * hidden * hidden)


def _block_type(config: Config, index: int) -> str:
    """What a layer of Nemotron-H is, besides a mixer."""
    letters = config.text("hybrid_override_pattern")
    if letters:
        return {"E": "moe", "-": "mlp"}.get(letters[index], "mixer")
    types = config.texts("layers_block_type") or config.texts("layer_types")
    if not types:
        raise config.missing("hybrid_override_pattern", "layers_block_type")
    return types[index]


def _has_experts_by_number(config: Config, family: Family, index: int) -> bool:
    if isinstance(config.values.get("moe_layer_freq"), list):
        listed = config.integers("moe_layer_freq", high=1) or ()
        per_layer(listed, index + 1, config, "moe_layer_freq")
        return listed[index] == 1
    if config.has("moe_layers_enum"):
        return str(index) in config.text("moe_layers_enum").split(",")
    if index < config.integer_or(0, "first_k_dense_replace", high=MOST_LAYERS):
        return False
    if index in (config.integers("mlp_only_layers", high=MOST_LAYERS) or ()):
        return False
    if family.sliding == "chunked":
        return (index + 1) % config.integer("interleave_moe_layer_step", high=MOST_LAYERS) == 0
    step = config.integer_or(1, "decoder_sparse_step", low=1, high=MOST_LAYERS)
    return (index + 1) % step == 0 and index % config.integer_or(
        1, "moe_layer_freq", low=1, high=MOST_LAYERS
    ) == 0
