"""Counts a vision tower's parameters from `vision_config` alone."""

from __future__ import annotations

from sparkfleet.checkpoints.io.config_json import Config

DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers", "layers")
WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size", "width")
INNER = ("intermediate_size", "vt_intermediate_size")
MERGE = ("spatial_merge_size", "merge_size")
MOST = 1 << 20


HEARING = ("Voxtral", "Audio", "Asr", "ASR", "Speech")
"""Words in the classes of models that take sound and no images."""


def is_multimodal(architecture: str) -> bool:
    """True if a class is named as those of Transformers that take images."""
    return architecture.endswith("ForConditionalGeneration") and not any(
        map(architecture.__contains__, HEARING)
    )


def vision_section(config: Config) -> Config | None:
    """The keys of the vision tower, if the config has any."""
    return config.section("vision_config") or config.section("vit_config")


def vision_parameters(config: Config) -> int | None:
    """Parameters of the tower and of its projector to the language model; None if the config has too few keys.

    Within 15 % of the real towers of Qwen3-VL, Qwen3.5, Gemma 4, GLM-4.5V, Kimi-K2.5 and GLM-5.3 (transformers 5.19);
    towers are a few per cent of their models.
    """
    section = vision_section(config)
    if section is None:
        return None
    depth, width = section.integer_or_none(*DEPTH, high=MOST), section.integer_or_none(*WIDTH, high=MOST)
    inner = section.integer_or_none(*INNER, high=MOST) or _by_ratio(section, width)
    if not depth or not width or not inner:
        return None
    if section.text("model_type").startswith("glm4v"):
        return _glm4v(section, depth, width, inner)
    matrices = 3 if section.text("model_type").startswith(("gemma4", "pixtral", "glm5")) else 2
    blocks = depth * (4 * width * width + matrices * width * inner)
    return blocks + _merger(section, width, config.integer_or(width, "hidden_size"))


def _glm4v(section: Config, depth: int, width: int, inner: int) -> int:
    """Feed-forwards as wide as the output, and a merger with a feed-forward of the declared size."""
    out = section.integer("out_hidden_size", high=MOST)
    merge = section.integer_or(2, *MERGE, low=1, high=64)
    blocks = depth * (4 * width * width + 3 * width * out)
    return blocks + out * (width * merge * merge + out + 3 * inner)


def _by_ratio(section: Config, width: int | None) -> int | None:
    ratio = section.number_or_none("mlp_ratio", low=0.1, high=100)
    return int(width * ratio) if width and ratio else None


def _merger(section: Config, width: int, hidden: int) -> int:
    """Neighbouring patches are joined, passed through one square layer and projected; deeper taps each have their own."""
    merge = section.integer_or(1, *MERGE, low=1, high=64)
    joined = width * merge * merge
    taps = section.integers("deepstack_visual_indexes", high=MOST) or ()
    square = joined * joined if merge > 1 else 0
    return (1 + len(taps)) * (
        square + joined * (section.integer_or_none("out_hidden_size", high=MOST) or hidden)
    )
