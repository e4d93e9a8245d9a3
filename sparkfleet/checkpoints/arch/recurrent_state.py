"""Reads recurrent states from a config: the memory of fixed size that a layer keeps per sequence."""

from __future__ import annotations

from sparkfleet.checkpoints.arch.layers import STATE_BYTES, LinearState
from sparkfleet.checkpoints.arch.model_families import Family
from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.errors import FactError


def read_state(config: Config, family: Family) -> LinearState:
    """Recurrent state of a linear layer of this family.

    Raises:
        FactError: a key is missing or wrong, or the family has no such layers.
    """
    if family.mixer == "mamba":
        return mamba_state(config)
    if family.mixer == "mamba-1":
        return _mamba_1_state(config)
    if family.mixer == "short-conv":
        return _convolution_state(config)
    if family.mixer == "kimi-delta":
        return _kimi_state(config, family)
    if family.mixer == "delta":
        return _delta_state(config)
    if not config.has("model_type"):
        raise config.missing("linear_num_value_heads", "mamba_num_heads")
    raise FactError(
        f"{config.where}: linear attention in a model of type {shown(config.text('model_type'))}.",
        means="The size of such a layer's state is not known.",
    )


def _delta_state(config: Config) -> LinearState:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5, Qwen3.6).

    Since Qwen3.5 the state is in 32 bits: so published pool sizes of Qwen3.6 show, and complete configs declare it.
    """
    unsaid = "float32" if config.text("model_type").startswith("qwen3_5") else "bfloat16"
    keys = config.integer("linear_num_key_heads", high=1 << 16) * config.integer(
        "linear_key_head_dim", high=1 << 16
    )
    heads = config.integer("linear_num_value_heads", high=1 << 16)
    value_dim = config.integer("linear_value_head_dim", high=1 << 16)
    return LinearState(
        heads=heads,
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=value_dim,
        conv_channels=2 * keys + heads * value_dim,
        conv_kernel=config.integer("linear_conv_kernel_dim", high=1 << 10),
        dtype=_state_dtype(config, "mamba_ssm_dtype", unsaid),
    )


def _kimi_state(config: Config, family: Family) -> LinearState:
    """Kimi Delta Attention (Kimi Linear, GLM-5.3-Flash, Ling 3); its state has 32 bits unless the config differs."""
    section = config.section("linear_attn_config")
    inner = config if section is None else section
    heads = inner.integer(
        *(("num_attention_heads",) if family.like_attention else ("num_heads", "linear_num_heads")),
        high=1 << 16,
    )
    dim = inner.integer("head_dim" if section or family.like_attention else "linear_head_dim", high=1 << 16)
    kernel = inner.integer("short_conv_kernel_size", "linear_conv_kernel_dim", high=1 << 10)
    return LinearState(
        heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv_channels=3 * heads * dim,
        conv_kernel=kernel,
        dtype="float32",
    )


def mamba_state(config: Config) -> LinearState:
    """Mamba-2 (Nemotron-H, Granite 4, Bamba, Falcon-H1)."""
    heads = config.integer("mamba_num_heads", "mamba_n_heads", high=1 << 16)
    dim = _mamba_head_dim(config, heads)
    state = config.integer("ssm_state_size", "mamba_d_state", high=1 << 16)
    groups = config.integer("n_groups", "mamba_n_groups", high=1 << 16)
    return LinearState(
        heads=heads,
        key_dim=state,
        value_dim=dim,
        conv_channels=heads * dim + 2 * groups * state,
        conv_kernel=config.integer("conv_kernel", "mamba_d_conv", high=1 << 10),
        dtype=_state_dtype(config, "mamba_ssm_cache_dtype", "float32"),
    )


def _mamba_head_dim(config: Config, heads: int) -> int:
    if config.values.get("mamba_d_head") != "auto":
        return config.integer("mamba_head_dim", "mamba_d_head", high=1 << 16)
    width = config.integer_or_none("mamba_d_ssm") or config.integer("mamba_expand") * config.integer(
        "hidden_size"
    )
    return max(1, width // heads)


def _mamba_1_state(config: Config) -> LinearState:
    """Mamba-1 (Jamba): every channel is a head of its own."""
    channels = config.integer("mamba_expand", high=1 << 10) * config.integer("hidden_size")
    return LinearState(
        heads=channels,
        key_dim=config.integer("mamba_d_state", high=1 << 16),
        value_dim=1,
        conv_channels=channels,
        conv_kernel=config.integer("mamba_d_conv", high=1 << 10),
        dtype=_state_dtype(config, "mamba_ssm_cache_dtype", "bfloat16"),
    )


def _convolution_state(config: Config) -> LinearState:
    """A short convolution (LFM2): only the last tokens."""
    return LinearState(
        heads=0,
        key_dim=0,
        value_dim=0,
        conv_channels=config.integer("conv_dim", "hidden_size"),
        conv_kernel=config.integer("conv_L_cache", high=1 << 10),
        dtype="bfloat16",
    )


def _state_dtype(config: Config, key: str, unsaid: str) -> str:
    dtype = config.text(key) or unsaid
    if dtype not in STATE_BYTES:
        raise config.wrong(key, f"one of {', '.join(STATE_BYTES)}")
    return dtype
