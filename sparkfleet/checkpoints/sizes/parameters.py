"""Counts a model's parameters from its config alone, part by part.

The formulas count matrices and leave out biases and the like; against the real models (transformers 5.19, built without
weights) they are within 1 % for every family in `model_families.py` (`tests/checkpoints/sizes/test_parameters.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkfleet.checkpoints.arch.draft_layers import mtp_layers_declared
from sparkfleet.checkpoints.arch.feed_forward import (
    dense_width,
    expert_width,
    layers_with_dense,
    layers_with_experts,
    read_experts,
    shared_width,
)
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind, LinearState
from sparkfleet.checkpoints.arch.model_families import Family
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config

PartSizes = Counter[Part]

HYPER_CONNECTIONS = 2
"""Attention and feed-forward have one each."""


def count_parameters(config: Config, family: Family, layers: Sequence[LayerGroup]) -> PartSizes:
    """Parameters by part, of everything but vision.

    Raises:
        FactError: a key is missing or wrong.
    """
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    sizes: PartSizes = Counter({Part.EMBEDDING: vocab * hidden + _lookup_tables(config, layers)})
    if not config.flag("tie_word_embeddings"):
        sizes[Part.HEAD] = vocab * hidden
    experts = layers_with_experts(config, family, layers)
    dense = layers_with_dense(config, family, layers, experts)
    mixture = _mixture(config, family) if experts else Counter()
    for index, layer in enumerate(layers):
        feed_forward = (
            _matrices(family) * hidden * dense_width(config, family, layer, index) if index in dense else 0
        )
        sizes += _layer(config, family, layer, feed_forward, mixture if index in experts else Counter())
    sizes[Part.OTHER] += _around_layers(config)
    sizes[Part.MTP] += _mtp(config, family, layers)
    return sizes


def _layer(config: Config, family: Family, layer: LayerGroup, dense: int, mixture: PartSizes) -> PartSizes:
    """Parameters of one layer; `dense` and `mixture` are those of its feed-forward."""
    hidden = config.integer("hidden_size")
    sizes = _mixer(config, family, layer)
    sizes[Part.NORMS] += hidden if layer.kind is LayerKind.NONE else 2 * hidden
    sizes[Part.MLP] += dense
    sizes += mixture
    sizes[Part.OTHER] += _between_layers(config)
    return sizes


def _matrices(family: Family) -> int:
    return 3 if family.gated else 2


def _mixture(config: Config, family: Family) -> PartSizes:
    """Routed and shared experts, and the router, of one layer."""
    experts, hidden = read_experts(config), config.integer("hidden_size")
    size = expert_width(config, family)
    inside = config.integer_or_none("moe_latent_size", "routed_expert_hidden_size", low=1) or hidden
    shared = shared_width(config, experts, size)
    sizes: PartSizes = Counter(
        {
            Part.EXPERTS: experts.routed * _matrices(family) * inside * size,
            Part.SHARED_EXPERTS: _matrices(family) * hidden * shared if experts.shared else 0,
            Part.ROUTER: experts.routed * hidden,
        }
    )
    if inside != hidden:
        sizes[Part.MLP] += 2 * hidden * inside
    return sizes


def _mixer(config: Config, family: Family, layer: LayerGroup) -> PartSizes:
    if layer.kind is LayerKind.NONE:
        return Counter()
    if layer.state is not None:
        linear = Counter({Part.LINEAR_ATTENTION: _linear(config, family, layer.state)})
        beside = layer.model_copy(update={"state": None})
        return linear if layer.kind is LayerKind.LINEAR else linear + _mixer(config, family, beside)
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
    gate = hidden * _gate_size(config, heads, value)
    up = config.integer("kv_lora_rank") * heads * (nope + value)
    return down + hidden * layer.key_dim + up + heads * value * hidden + gate


def _gate_size(config: Config, heads: int, value: int) -> int:
    """Size of the gate on a latent's output: one per element (Kimi K3), or per element or head (Ling 3)."""
    kind = config.text("gated_attention_proj_granularity_type")
    if config.flag("mla_use_output_gate") or kind == "element_wise":
        return heads * value
    return heads if kind == "head_wise" else 0


def _indexer(config: Config, layer: LayerGroup) -> int:
    """Indexer that selects the tokens of sparse attention."""
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
    """DeepSeek V4: low-rank queries, one latent head, grouped low-rank output, compressor and indexer."""
    hidden, heads, dim = config.integer("hidden_size"), layer.query_heads, layer.key_dim
    rank, out = config.integer("q_lora_rank"), config.integer("o_lora_rank")
    groups = config.integer("o_groups", high=1 << 16)
    size = hidden * rank + rank * heads * dim + hidden * dim + heads * dim * out + groups * out * hidden
    if layer.kind is LayerKind.MLA and layer.kv_heads:
        size += 2 * hidden * dim * (2 if layer.index_dim else 1)
    if layer.index_dim:
        index_heads = config.integer("index_n_heads", high=1 << 16)
        size += rank * index_heads * layer.index_dim + 4 * hidden * layer.index_dim + hidden * index_heads
    return size


def _linear(config: Config, family: Family, state: LinearState) -> int:
    hidden = config.integer("hidden_size")
    values = state.heads * state.value_dim
    convolution = state.conv_channels * state.conv_kernel
    if family.mixer == "short-conv":
        return 4 * hidden * hidden + convolution
    if family.mixer == "mamba-1":
        return _mamba_1(config, state) + convolution
    if family.mixer in ("mamba", "beside-mamba"):
        return hidden * (values + state.conv_channels + state.heads) + convolution + values * hidden
    if family.mixer == "kimi-delta":
        return _kimi(config, values, state.heads, state.value_dim) + convolution
    # Gated DeltaNet: queries, keys and values as they enter the convolution; a gate; two numbers per head; the output.
    return hidden * (state.conv_channels + 2 * values + 2 * state.heads) + convolution


def _mamba_1(config: Config, state: LinearState) -> int:
    """Input and gate, output; the projections to step, B and C of each token; A."""
    hidden, channels, size = config.integer("hidden_size"), state.heads, state.key_dim
    auto = config.values.get("mamba_dt_rank") in (None, "auto")
    rank = -(-hidden // 16) if auto else config.integer("mamba_dt_rank")
    return channels * (3 * hidden + 2 * rank + 3 * size)


def _kimi(config: Config, values: int, heads: int, dim: int) -> int:
    hidden = config.integer("hidden_size")
    section = config.section("linear_attn_config")
    full_rank, low_rank = hidden * values, hidden * dim + dim * values
    if config.flag("no_kda_lora"):
        return hidden * (4 * values + heads) + 2 * full_rank
    gate = full_rank if section and section.flag("use_full_rank_gate") else low_rank
    return hidden * (4 * values + heads) + low_rank + gate


def _between_layers(config: Config) -> int:
    """Parameters around a layer: projections of per-layer embeddings, or of the parallel streams of hyper-connections."""
    hidden = config.integer("hidden_size")
    if config.integer_or(0, "hidden_size_per_layer_input"):
        return 3 * hidden * config.integer("hidden_size_per_layer_input") + _alternating(config)
    if config.has("hc_lowrank"):
        streams = config.integer("hc_count", high=1 << 10)
        return HYPER_CONNECTIONS * hidden * streams * (2 * config.integer("hc_lowrank") + streams)
    streams = config.integer_or(0, "hc_mult", high=1 << 10)
    return HYPER_CONNECTIONS * hidden * streams * (streams * streams + 2 * streams)


def _alternating(config: Config) -> int:
    """Gemma 3n: a low-rank residual, and the mixing of the streams, of which each layer updates one."""
    hidden, streams = config.integer("hidden_size"), config.integer_or(0, "altup_num_inputs", high=1 << 10)
    return 2 * hidden * config.integer_or(0, "laurel_rank") + streams * (hidden + streams + streams * streams)


def _around_layers(config: Config) -> int:
    """Gemma 3n's projections from one stream to several, and back to one."""
    streams = config.integer_or(0, "altup_num_inputs", high=1 << 10)
    return 2 * max(0, streams - 1) * config.integer("hidden_size") ** 2


MOST_ROWS = 1 << 40
"""More rows than any table of n-grams has."""


def _lookup_tables(config: Config, layers: Sequence[LayerGroup]) -> int:
    """Tables of which a token reads one row: per-layer embeddings of Gemma's E-models, n-grams of Qwen3.8-Flash-Next and
    DeepSeek V4.1."""
    per_layer_size = config.integer_or(0, "hidden_size_per_layer_input")
    size = per_layer_size and config.integer(
        "vocab_size_per_layer_input", "vocab_size"
    ) * per_layer_size * len(layers)
    places = config.integers("ple_layer_ids", high=MOST_LAYERS) or ()
    if places:
        size += len(places) * config.integer("ngram_vocab_size_base") * config.integer("ple_embed_dim")
    rows = config.integers("engram_num_embeddings", high=MOST_ROWS) or ()
    return size + sum(rows) * (config.integer("engram_head_dim") if rows else 0)


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
