"""Reads the feed-forward of each layer from a config: dense, a mixture of experts, both or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.arch.model_families import Family
from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config, per_layer
from sparkfleet.values import Value

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "num_routed_experts", "moe_num_experts")
PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_SIZE = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a model; all 0 if it has none."""

    routed: int = 0
    per_token: int = 0
    shared: int = 0


class FeedForwardWidths(Value):
    """Columns between the matrices of each kind of feed-forward (`intermediate_size`), which TP splits over the ranks."""

    routed: int = 0
    """Of one routed expert; 0 if there are none."""
    shared: int = 0
    """Of all shared experts together; 0 if there are none."""
    dense: tuple[int, ...] = ()
    """Of the dense ones, each width once, in ascending order."""


def read_experts(config: Config) -> Experts:
    """Reads the number of experts, and of those active per token."""
    routed = config.integer_or(0, *EXPERTS, high=MOST_EXPERTS)
    # Gemma 4 declares a number of experts in its dense models as well, and disables them.
    # A single one, as in the small Jambas, is a plain feed-forward.
    if routed < 2 or config.values.get("enable_moe_block") is False:
        return Experts()
    per_token = config.over(_listed_alike(config)).integer(*PER_TOKEN, high=routed)
    shared = config.integer_or_none(*SHARED, high=MOST_EXPERTS)
    if shared is None:
        shared = 1 if config.integer_or(0, *SHARED_SIZE) else 0
    return Experts(routed, per_token, shared)


def _listed_alike(config: Config) -> dict[str, object]:
    """Hunyuan lists the experts per token for each layer; all have to be equal."""
    listed = config.values.get("moe_topk")
    return {"moe_topk": listed[0]} if isinstance(listed, list) and len(set(map(repr, listed))) == 1 else {}


def layers_with_experts(config: Config, family: Family, layers: Sequence[LayerGroup]) -> frozenset[int]:
    """Numbers of the layers whose feed-forward is a mixture of experts."""
    if not read_experts(config).routed:
        return frozenset()
    if family.feed_forward_apart:
        return _layers_of_type(config, layers, "moe")
    types = config.texts("mlp_layer_types")
    if types:
        per_layer(types, len(layers), config, "mlp_layer_types")
        return frozenset(index for index in range(len(layers)) if types[index] != "dense")
    return frozenset(index for index in range(len(layers)) if _has_experts_by_number(config, family, index))


def layers_with_dense(
    config: Config, family: Family, layers: Sequence[LayerGroup], experts: frozenset[int]
) -> frozenset[int]:
    """Numbers of the layers with a dense feed-forward. `experts`: those of `layers_with_experts`."""
    if family.feed_forward_apart:
        return _layers_of_type(config, layers, "mlp")
    sizes = config.values.get(family.dense_size)
    # Nemotron-NAS has layers without any.
    without = {index for index, size in enumerate(sizes) if size == 0} if isinstance(sizes, list) else set()
    among = range(len(layers)) if family.dense_beside_experts else frozenset(range(len(layers))) - experts
    return frozenset(among) - without


def _layers_of_type(config: Config, layers: Sequence[LayerGroup], kind: str) -> frozenset[int]:
    """Numbers of the layers of a family in which a feed-forward is a layer of its own."""
    return frozenset(
        index
        for index, layer in enumerate(layers)
        if layer.kind is LayerKind.NONE and _block_type(config, index) == kind
    )


def _block_type(config: Config, index: int) -> str:
    """Feed-forward kind of a layer of Nemotron-H."""
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
    dense = index < config.integer_or(0, "first_k_dense_replace", "num_dense_layers", high=MOST_LAYERS)
    if dense or index in (config.integers("mlp_only_layers", high=MOST_LAYERS) or ()):
        return False
    return _in_step(config, family, index)


def _in_step(config: Config, family: Family, index: int) -> bool:
    """True for experts in every n-th layer, by the keys of each family."""
    if family.sliding == "chunked":
        return (index + 1) % config.integer("interleave_moe_layer_step", high=MOST_LAYERS) == 0
    if config.has("expert_layer_period"):
        period = config.integer("expert_layer_period", high=MOST_LAYERS)
        return index % period == config.integer("expert_layer_offset", low=0, high=MOST_LAYERS)
    if config.has("moe_layer_start_index"):
        return _in_range(config, index)
    step = config.integer_or(1, "decoder_sparse_step", low=1, high=MOST_LAYERS)
    every = config.integer_or(1, "moe_layer_freq", low=1, high=MOST_LAYERS)
    return (index + 1) % step == 0 and index % every == 0


def _in_range(config: Config, index: int) -> bool:
    """True for experts in a range of layers (ERNIE 4.5); a missing or negative end is the last layer."""
    start = config.integer("moe_layer_start_index", low=0, high=MOST_LAYERS)
    end = config.integer_or_none("moe_layer_end_index", low=-1, high=MOST_LAYERS)
    step = config.integer_or(1, "moe_layer_interval", low=1, high=MOST_LAYERS)
    ended = end is not None and 0 <= end < index
    return index >= start and not ended and (index + 1) % step == 0


def read_widths(config: Config, family: Family, layers: Sequence[LayerGroup]) -> FeedForwardWidths:
    """Reads the widths of the feed-forwards; `layers` are the decoder layers one by one.

    Raises:
        FactError: a key is missing or wrong.
    """
    with_experts = layers_with_experts(config, family, layers)
    with_dense = layers_with_dense(config, family, layers, with_experts)
    routed = expert_width(config, family) if with_experts else 0
    experts = read_experts(config) if with_experts else Experts()
    return FeedForwardWidths(
        routed=routed,
        shared=shared_width(config, experts, routed) if experts.shared else 0,
        dense=tuple(sorted({dense_width(config, family, layers[index], index) for index in with_dense})),
    )


def expert_width(config: Config, family: Family) -> int:
    """Columns between the matrices of one routed expert."""
    return config.integer(family.expert_size, "moe_intermediate_size")


def shared_width(config: Config, experts: Experts, routed: int) -> int:
    """Columns between the matrices of all shared experts together, which engines keep as one; 0 if there are none.

    Args:
        routed: those of a routed expert, which a shared one has if the config names no size of its own.
    """
    return config.integer_or(0, *SHARED_SIZE) or experts.shared * routed


def dense_width(config: Config, family: Family, layer: LayerGroup, index: int) -> int:
    """Columns between the matrices of the dense feed-forward of the layer with this number."""
    if isinstance(config.values.get(family.dense_size), list):
        listed = config.integers(family.dense_size) or ()
        per_layer(listed, index + 1, config, family.dense_size)
        return listed[index]
    if family.dense_adjusted:
        return _adjusted(config, config.integer("block_ff_dim", family.dense_size))
    size = config.integer(family.dense_size)
    return 2 * size if layer.kv_heads == 0 and config.flag("use_double_wide_mlp") else size


def _adjusted(config: Config, size: int) -> int:
    """LFM2's size: two thirds of the declared one, times a factor, rounded up to a multiple."""
    if not config.flag("block_auto_adjust_ff_dim"):
        return size
    factor = config.number_or_none("block_ffn_dim_multiplier", low=0.0, high=100)
    multiple = config.integer("block_multiple_of", high=1 << 16)
    return multiple * -(-int((1.0 if factor is None else factor) * (2 * size // 3)) // multiple)
