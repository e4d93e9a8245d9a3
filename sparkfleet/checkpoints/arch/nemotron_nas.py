"""Reads the blocks of Nemotron-NAS (DeciLM): the attention and feed-forward that a search kept in each layer.

Read from vLLM 0.32 (`model_executor/models/nemotron_nas.py`, DeciLMDecoderLayer).
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config
from sparkfleet.errors import FactError

MULTIPLE = 256
"""Feed-forward sizes that are declared as a factor are rounded up to a multiple of this."""
MOST_FACTOR = 1e3


def unrolled(config: Config) -> Config:
    """A config with per-layer lists in place of its `block_configs`; one of another family is returned as it is.

    Raises:
        FactError: there are none, or a block has a part that no engine is known to run.
    """
    if config.text("model_type") != "nemotron-nas":
        return config
    if not config.has("block_configs"):
        raise config.missing("block_configs")
    heads, kinds, sizes = [], [], []
    for block in _blocks(config):
        attention, feed_forward = _part(block, "attention"), _part(block, "ffn")
        attends = not attention.flag("no_op")
        kinds.append("full_attention" if attends else "mlp")
        heads.append(_kv_heads(config, attention) if attends else 0)
        sizes.append(0 if feed_forward.flag("no_op") else _size(config, feed_forward))
    lists = {"layer_types": kinds, "num_key_value_heads_per_layer": heads, "intermediate_size": sizes}
    return config.over(lists)


def _blocks(config: Config) -> Iterator[Config]:
    blocks = config.values.get("block_configs")
    if not isinstance(blocks, list) or not 0 < len(blocks) <= MOST_LAYERS:
        raise config.wrong("block_configs", "a list of layers")
    for number, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise config.wrong("block_configs", "a list of objects")
        yield Config(block, f"{config.where}: block {number}")


def _part(block: Config, name: str) -> Config:
    part = block.section(name)
    if part is None:
        raise block.missing(name)
    if part.flag("replace_with_linear"):
        raise FactError(
            f"{part.where}: one matrix in place of the layer's part.",
            means="No engine is known to run such a layer, and its size is not known.",
            do="Choose another model.",
        )
    return part


def _kv_heads(config: Config, attention: Config) -> int:
    heads = config.integer("num_attention_heads", high=1 << 16)
    return max(1, heads // attention.integer("n_heads_in_group", high=1 << 16))


def _size(config: Config, feed_forward: Config) -> int:
    factor = feed_forward.number_or_none("ffn_mult", low=0.0, high=MOST_FACTOR)
    if factor is None:
        return feed_forward.integer("intermediate_size")
    return MULTIPLE * -(-int(2 * factor * config.integer("hidden_size") / 3) // MULTIPLE)
