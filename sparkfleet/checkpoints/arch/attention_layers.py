"""Reads the layers of a model from its config: the cache or state of each, by its kind (`layer_kinds`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict

from sparkfleet.checkpoints.arch.layer_kinds import layer_count, layer_kinds
from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.arch.model_families import Family
from sparkfleet.checkpoints.arch.recurrent_state import mamba_state, read_state
from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config, per_layer
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.errors import FactError

COMPRESSED_TYPES: Mapping[str, int] = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
INDEXED_RATIO = 4
"""Compression ratio of DeepSeek V4's layers that select tokens by an index: 4 tokens into one entry."""


PICKED = 2048
"""Tokens that sparse attention reads per query if the config has none (`index_topk` of DeepSeek V3.2 and GLM-5)."""

HEADS = "num_attention_heads"
KV_HEADS = ("num_key_value_heads", "num_attention_groups", "num_kv_heads")


class _Index(TypedDict):
    """The fields of a `LayerGroup` that describe its index."""

    index_dim: int
    index_pool: int
    index_heads: int
    picked: int


_NO_INDEX = _Index(index_dim=0, index_pool=1, index_heads=0, picked=0)


def read_layers(config: Config, family: Family) -> tuple[LayerGroup, ...]:
    """One group of a single layer for every decoder layer, in order.

    Raises:
        FactError: a key is missing or of the wrong type, or the kind of a layer is not known.
    """
    if family.mixer == "compressed":
        return tuple(_compressed(config, ratio, index) for index, ratio in enumerate(_ratios(config)))
    overrides = _overrides(config)
    return tuple(
        _layer(config.over(overrides[index]) if index in overrides else config, family, kind, index)
        for index, kind in enumerate(layer_kinds(config, family))
    )


def prompt_layers(config: Config) -> int | None:
    """Layers that every token of a prompt passes if the last ones only read what earlier ones keep; None: all of them.

    Of DeepSeek V4.1's those up to the last that keeps latents: the ones behind it are run for a prompt's end only.
    """
    sources = config.integers("kv_source_layer_ids", high=MOST_LAYERS)
    return max(sources) + 1 if sources else None


def group_layers(layers: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Groups of equal layers, in the order of their first appearance.

    A layer of Falcon-H1 is three: it attends and keeps a state, each with an output of its own, before one feed-forward.
    """
    found = Counter(part for layer in layers for part in _kept_apart(layer))
    return tuple(part.model_copy(update={"layers": count}) for part, count in found.items())


def _kept_apart(layer: LayerGroup) -> Sequence[LayerGroup]:
    if layer.state is None or layer.kind is LayerKind.LINEAR:
        return (layer,)
    mamba = LayerGroup(kind=LayerKind.LINEAR, layers=1, state=layer.state)
    return layer.model_copy(update={"state": None}), mamba, LayerGroup(kind=LayerKind.NONE, layers=1)


def _overrides(config: Config) -> dict[int, Mapping[str, object]]:
    """`per_layer_config`, as transformers 5.19 writes it: layer number → keys that differ there."""
    section = config.section("per_layer_config")
    if section is None:
        return {}
    found: dict[int, Mapping[str, object]] = {}
    for name in section.values:
        inner = section.section(name)
        if inner is None or not (name.isascii() and name.isdigit() and len(name) <= 4):
            raise section.wrong(name, "an object for each layer number")
        found[int(name)] = inner.values
    return found


def _layer(config: Config, family: Family, kind: LayerKind, index: int) -> LayerGroup:
    if kind is LayerKind.NONE:
        return LayerGroup(kind=kind, layers=1)
    if kind is LayerKind.LINEAR:
        return LayerGroup(kind=kind, layers=1, state=read_state(config, family))
    if config.has("kv_lora_rank") and family.mixer in ("latent", "kimi-delta"):
        return _latent(config, index)
    attention = _attention(config, family, kind, index)
    beside = mamba_state(config) if family.mixer == "beside-mamba" else None
    return attention.model_copy(update={"state": beside})


def _attention(config: Config, family: Family, kind: LayerKind, index: int) -> LayerGroup:
    """Grouped-query attention."""
    prefix = "swa_" if kind is LayerKind.SLIDING and config.has("swa_num_key_value_heads") else ""
    heads = config.integer(prefix + HEADS, high=1 << 16)
    heads = _heads_of_layer(config, kind, index, heads)
    kv_heads = _kv_heads(config, prefix, index) if _has_kv(config) else heads
    if kind is LayerKind.SLIDING and not prefix:
        kv_heads *= family.sliding_kv
    key_dim = _head_dim(config, prefix)
    if kind is LayerKind.FULL:
        key_dim = config.integer_or_none("global_head_dim") or key_dim
        kv_heads = config.integer_or_none("num_global_key_value_heads") or kv_heads
    value_dim = config.integer_or_none(prefix + "v_head_dim") or key_dim
    window = _window(config, family) if kind is LayerKind.SLIDING else None
    return LayerGroup(
        kind=kind if window is not None else LayerKind.FULL,
        layers=1,
        query_heads=heads,
        kv_heads=0 if _shares_kv(config, index) else kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        window=window,
        **_index(config, index),
    )


def _kv_heads(config: Config, prefix: str, index: int) -> int:
    listed = config.integers("num_key_value_heads_per_layer", high=1 << 16)
    if listed:
        per_layer(listed, index + 1, config, "num_key_value_heads_per_layer")
        return listed[index]
    return config.integer(*(prefix + key for key in KV_HEADS), high=1 << 16)


def _has_kv(config: Config) -> bool:
    # Models without grouped queries lack the key and have as many KV heads as heads (Llama 1, Phi).
    return config.has(*KV_HEADS, "num_key_value_heads_per_layer", "swa_num_key_value_heads")


def _heads_of_layer(config: Config, kind: LayerKind, index: int, heads: int) -> int:
    listed = config.integers("num_attention_heads_per_layer", high=1 << 16)
    if listed:
        per_layer(listed, index + 1, config, "num_attention_heads_per_layer")
        return listed[index]
    if kind is LayerKind.SLIDING:
        return config.integer_or(heads, "num_sliding_attention_heads", "num_attention_heads_sliding")
    return heads


def _head_dim(config: Config, prefix: str) -> int:
    # Some configs have 0 for "not set".
    given = config.integer_or_none(prefix + "head_dim", high=1 << 16)
    return given or max(1, config.integer("hidden_size") // config.integer(HEADS, high=1 << 16))


def _window(config: Config, family: Family) -> int | None:
    """Window in tokens; None if it is not shorter than the model's context."""
    key = "attention_chunk_size" if family.sliding == "chunked" else "sliding_window"
    window = config.integer(key)
    most = config.integer_or_none("max_position_embeddings")
    return None if most is not None and window >= most else window


def _shares_kv(config: Config, index: int) -> bool:
    """The last layers of Gemma 3n and 4 E-models read the cache of an earlier one."""
    return index >= layer_count(config) - config.integer_or(0, "num_kv_shared_layers", high=MOST_LAYERS)


def _latent(config: Config, index_of_layer: int) -> LayerGroup:
    """Multi-head latent attention: one latent per token, from which keys and values are computed.

    A prefill computes them and attends with `qk_nope + qk_rope` and `v_head_dim` elements per head; a decode step, and all
    of sparse attention, attends to the latents themselves (vLLM 0.32, model_executor/layers/attention/mla_attention.py:
    "compute friendly" and "data-movement friendly approach"; v1/attention/backends/mla/flashmla_sparse.py, whose prefill
    kernel reads latents, too; DeepSeek-V2, arXiv 2405.04434, section 2.1).
    """
    rank, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim", low=0)
    index = _index(config, index_of_layer)
    nope, value = config.integer_or(0, "qk_nope_head_dim"), config.integer_or(0, "v_head_dim")
    computed = nope + rope + value if nope and value and not index["picked"] else rank + rope + rank
    return LayerGroup(
        kind=LayerKind.MLA,
        layers=1,
        query_heads=config.integer(HEADS, high=1 << 16),
        kv_heads=1,
        key_dim=rank + rope,
        prefill_dim=computed,
        **index,
    )


def _index(config: Config, index: int) -> _Index:
    """Sparse attention's index of one layer; a layer that reuses another's selection has none, but reads as few tokens."""
    sparse = config.section("sparse_attention_config")
    if sparse is not None:
        return _block_index(sparse, index)
    size = config.integer_or(0, "index_head_dim", "indexer_head_dim", high=1 << 16)
    if not size:
        return _NO_INDEX
    shared = config.texts("indexer_types") or ()
    return _Index(
        index_dim=0 if shared[index : index + 1] == ("shared",) else size,
        index_pool=config.integer_or(1, "index_kpool", "indexer_compress_ratio", low=1, high=1 << 16),
        index_heads=config.integer_or(1, "index_n_heads", "indexer_n_heads", high=1 << 16),
        picked=config.integer_or(PICKED, "index_topk", "indexer_budget"),
    )


def _block_index(sparse: Config, index: int) -> _Index:
    """MiniMax-M3's index: it selects blocks of tokens, and some layers are not sparse."""
    listed = sparse.integers("sparse_attention_freq", high=1)
    size = sparse.integer_or(0, "sparse_index_dim")
    if not size or (listed is not None and listed[index : index + 1] != (1,)):
        return _NO_INDEX
    blocks = sparse.integer_or(0, "sparse_topk_blocks") * sparse.integer_or(0, "sparse_block_size")
    heads = sparse.integer_or(1, "sparse_num_index_heads", high=1 << 16)
    return _Index(index_dim=size, index_pool=1, index_heads=heads, picked=blocks or PICKED)


def _ratios(config: Config) -> Sequence[int]:
    """Compression of each of DeepSeek V4's layers, tokens per entry; 0 for a layer that only slides."""
    layers = layer_count(config)
    ratios: Sequence[int] | None = config.integers("compress_ratios", high=1 << 16)
    types = config.texts("layer_types")
    if ratios is None and types is not None:
        rates = config.section("compress_rates") or Config({}, config.where)
        ratios = [rates.integer_or(_ratio_of(name, config), name, high=1 << 16) for name in types]
    if ratios is None:
        raise config.missing("compress_ratios")
    per_layer(ratios, layers, config, "compress_ratios")
    return ratios[:layers]


def _ratio_of(name: str, config: Config) -> int:
    if name not in COMPRESSED_TYPES:
        raise FactError(
            f"{config.where}: the layer type {shown(name)} is not known.",
            means="The memory per token of such a layer cannot be derived.",
            do=f"Choose a model whose layer types are all known: {', '.join(COMPRESSED_TYPES)}.",
        )
    return COMPRESSED_TYPES[name]


def _compressed(config: Config, ratio: int, layer: int) -> LayerGroup:
    """One of DeepSeek V4's layers: a latent per token in a window, and per `ratio` tokens beyond it.

    Of V4.1's layers a few keep such latents, with the keys of an index, and the others read those of the last one before
    them (vLLM, models/deepseek_v4_1/attention.py).
    """
    sources = config.integers("kv_source_layer_ids", high=MOST_LAYERS)
    is_indexed = ratio > 0 if sources else ratio == INDEXED_RATIO
    if is_indexed and not config.has("index_head_dim"):
        raise config.missing("index_head_dim")
    group = LayerGroup(
        kind=LayerKind.MLA if ratio else LayerKind.SLIDING,
        layers=1,
        query_heads=config.integer(HEADS, high=1 << 16),
        kv_heads=config.integer(*KV_HEADS, high=1 << 16),
        key_dim=config.integer("head_dim", high=1 << 16),
        window=config.integer("sliding_window"),
        tokens_per_entry=max(1, ratio),
        prefill_dim=2 * config.integer("head_dim", high=1 << 16),
        **(_index(config, 0) if is_indexed else _NO_INDEX),
    )
    if not sources or not ratio or layer in sources:
        return group
    return group.model_copy(update={"kv_heads": 0, "index_dim": 0, "index_heads": 0})
