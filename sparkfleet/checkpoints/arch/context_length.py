"""Context length that a model supports."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.checkpoints.io.config_json import Config

POSITIONS = (
    "max_position_embeddings",
    "max_sequence_length",
    "model_max_length",
    "n_positions",
    "seq_length",
)

INCLUDED = frozenset({"default", "", "su", "longrope", "llama3", "mrope", "proportional"})
"""Scaling methods whose factor `max_position_embeddings` already includes (vLLM 0.32, `config/model.py`)."""

ALREADY_SCALED = ("gemma3",)
"""Families with another kind of factor that is included as well."""

MOST_FACTOR = 1e6


def max_positions(config: Config) -> int | None:
    """Longest context in tokens, with the scaling of rotary embeddings; None if the config does not declare it."""
    declared = config.integer_or_none(*POSITIONS, low=1)
    if declared is None or config.text("model_type").startswith(ALREADY_SCALED):
        return declared
    return max([declared, *(_scaled(section, declared) for section in _rope_sections(config))])


def _rope_sections(config: Config) -> Iterator[Config]:
    """`rope_scaling` or `rope_parameters`; the latter may have a section per kind of layer."""
    for key in ("rope_scaling", "rope_parameters"):
        section = config.section(key)
        if section is None:
            continue
        inner = [section.section(name) for name, value in section.values.items() if isinstance(value, dict)]
        yield from (each for each in inner if each is not None)
        yield section


def _scaled(section: Config, declared: int) -> int:
    kind = section.text("rope_type") or section.text("type")
    factor = section.number_or_none("factor", low=0.0, high=MOST_FACTOR)
    if kind in INCLUDED or factor is None:
        return declared
    # YaRN declares the unscaled length: some authors wrote the product into max_position_embeddings, some did not.
    original = section.integer_or_none("original_max_position_embeddings", low=1)
    return round((original or declared) * factor)
