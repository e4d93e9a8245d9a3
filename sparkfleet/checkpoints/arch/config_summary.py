"""The summaries of configs that benchmark collections carry: counts in place of per-layer lists, published totals.

`{"layer_type_counts": {"linear_attention": 48, "full_attention": 16}, "quantization": {…}, "params_total_b": 27}`
becomes what a `config.json` would say. Only sums matter for sizes, so the order of the layers does not.
"""

from __future__ import annotations

from sparkfleet.checkpoints.io.config_json import MOST_LAYERS, Config
from sparkfleet.errors import FactError

LIST_OF_COUNTS = {
    "layer_type_counts": "layer_types",
    "hybrid_layer_pattern_counts": "hybrid_layer_pattern",
    "moe_layer_freq_counts": "moe_layer_freq",
    "compress_ratios_counts": "compress_ratios",
}

PLAIN_TYPES = {"full_or_sparse_attention": "full_attention"}

AGREEMENT = 0.1
"""A derived total may differ from a published one by this much: published ones are rounded."""


def expanded(config: Config) -> Config:
    """A config with the per-layer lists that its counts stand for; one without counts as it is."""
    found: dict[str, object] = {}
    for counts_key, key in LIST_OF_COUNTS.items():
        counts = config.section(counts_key)
        if counts is not None and not config.has(key) and not _has_pattern(config, key):
            found[key] = _listed(counts, key)
    if config.has("quantization") and not config.has("quantization_config"):
        found["quantization_config"] = config.values["quantization"]
    return config.over(found) if found else config


def check_published(config: Config, parameters: int) -> None:
    """A derived total agrees with the published one, where a summary has it.

    Raises:
        FactError: it does not; something about the architecture is not understood.
    """
    published = config.number_or_none("params_total_b", low=0.0, high=1e6)
    if published and abs(parameters / 1e9 - published) > AGREEMENT * published:
        raise FactError(
            f"{config.where}: {published:g} billion parameters are published, {parameters / 1e9:.1f} follow from the shape.",
            means="Something about this architecture is not understood, so its sizes cannot be derived.",
            do="Give the directory of the checkpoint.",
        )


def _has_pattern(config: Config, key: str) -> bool:
    return key == "layer_types" and config.has("hybrid_override_pattern")


def _listed(counts: Config, key: str) -> list[object]:
    entries: list[object] = []
    # A zero that is one too many belongs to an MTP head, which comes last.
    for name in sorted(counts.values, key=lambda name: (name == "0", name)):
        count = counts.integer(name, low=0, high=MOST_LAYERS)
        value = PLAIN_TYPES.get(name, name) if key == "layer_types" else _number(name, counts)
        entries += [value] * count
    return entries


def _number(name: str, counts: Config) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= 6):
        raise counts.wrong(name, "counted by a number")
    return int(name)
