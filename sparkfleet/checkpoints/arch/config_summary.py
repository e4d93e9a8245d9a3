"""Expands the config summaries of benchmark collections: counts in place of per-layer lists, published totals.

`{"layer_type_counts": {"linear_attention": 48, "full_attention": 16}, "quantization": {…}, "params_total_b": 27}`
becomes the keys of a `config.json`. Sizes depend on sums only, so the order of the layers does not matter.
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
    """A config with per-layer lists in place of its counts; a config without counts is returned as it is."""
    found: dict[str, object] = {}
    for counts_key, key in LIST_OF_COUNTS.items():
        counts = config.section(counts_key)
        if counts is not None and not config.has(key) and not _has_pattern(config, key):
            found[key] = _listed(counts, key)
    if config.has("quantization") and not config.has("quantization_config"):
        found["quantization_config"] = config.values["quantization"]
    return config.over(found) if found else config


def check_published(config: Config, parameters: int) -> None:
    """Compares a derived total with the published one, if the summary has it.

    Raises:
        FactError: they differ, so the architecture is not fully supported.
    """
    published = config.number_or_none("params_total_b", low=0.0, high=1e6)
    if published and abs(parameters / 1e9 - published) > AGREEMENT * published:
        raise FactError(
            f"{config.where}: {published:g} billion parameters are published, {parameters / 1e9:.1f} follow from the shape.",
            means="Part of this architecture is not supported, so its sizes cannot be derived from the config.",
            do="Give the directory of the checkpoint.",
        )


def _has_pattern(config: Config, key: str) -> bool:
    return key == "layer_types" and config.has("hybrid_override_pattern")


def _listed(counts: Config, key: str) -> list[object]:
    entries: list[object] = []
    # One zero too many belongs to an MTP head, which comes last.
    for name in sorted(counts.values, key=lambda name: (name == "0", name)):
        count = counts.integer(name, low=0, high=MOST_LAYERS)
        value = PLAIN_TYPES.get(name, name) if key == "layer_types" else _number(name, counts)
        entries += [value] * count
    return entries


def _number(name: str, counts: Config) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= 6):
        raise counts.wrong(name, "a layer number")
    return int(name)
