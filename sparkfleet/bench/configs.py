"""A `config.json` as it lies beside weights, in the words of the summaries that benchmark collections carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sparkfleet.bench.layers import Config

_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models that see or hear keep what concerns text."""
_NAMES = {
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "moe_num_experts": "num_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "experts_per_token": "num_experts_per_tok",
    "moe_top_k": "num_experts_per_tok",
    "moe_topk": "num_experts_per_tok",
}
_LISTS = {
    "layer_types": "layer_type_counts",
    "layers_block_type": "layer_type_counts",
    "hybrid_layer_pattern": "hybrid_layer_pattern_counts",
    "moe_layer_freq": "moe_layer_freq_counts",
    "compress_ratios": "compress_ratios_counts",
}
_LETTERS = {"M": "mamba2(M)", "E": "moe(E)", "*": "attention(*)", "-": "mlp(-)"}
"""Of Nemotron-H's `hybrid_override_pattern`."""


def summary(config: Config) -> Config:
    """The text part of a config, with counts for lists of layers and one name for each figure. A summary stays as it is."""
    found = dict(config)
    for name in _INNER:
        inner = config.get(name)
        found = {**found, **inner} if isinstance(inner, Mapping) else found
    for other, name in _NAMES.items():
        if other in found:
            found.setdefault(name, found[other])
    for name, counted in _LISTS.items():
        listed = found.get(name)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            found.setdefault(counted, Counter(map(str, listed)))
    pattern = found.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        found.setdefault("layer_type_counts", Counter(_LETTERS.get(letter, letter) for letter in pattern))
    return found
