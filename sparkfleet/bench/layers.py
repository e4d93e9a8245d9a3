"""Layers and parameters of a model, from a `config.json` or the summary of one.

Formulas follow the public model definitions of each architecture; a key that is missing is 0 or the architecture's default.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.planning.arch import COMPRESSED, EXACT, POOLS, Layers, Part

Config = Mapping[str, object]
Configs = Mapping[str, Config]


class Declined(Exception):
    """Something that cannot be predicted; the message is the reason, in words that can be counted."""


LARGEST = 1e9
"""No number in a config is larger."""


def integer(config: Config, key: str) -> int:
    """A whole number of a config, 0 where it has none.

    Raises:
        Declined: it is negative, not finite, or larger than any model's.
    """
    return int(real(config, key))


def real(config: Config, key: str) -> float:
    """A number of a config, 0 where it has none. Raises as `integer` does."""
    value = config.get(key)
    return _checked(key, value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _checked(key: str, value: float) -> float:
    if not 0 <= value <= LARGEST:  # not NaN either
        raise Declined(f"its config is not one of a model: {key} is negative, not finite or too large")
    return float(value)


def _counts(config: Config, key: str) -> dict[str, int]:
    value = config.get(key)
    if not isinstance(value, Mapping):
        return {}
    if not all(isinstance(n, int | float) for n in value.values()):
        raise Declined(f"its config is not one of a model: {key} has values that are no numbers")
    return {str(kind): int(_checked(key, n)) for kind, n in value.items()}


_KINDS = {
    "full_attention": "full",
    "full_or_sparse_attention": "full",
    "attention(*)": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "linear",
    "mamba2(M)": "linear",
    "mamba": "linear",
    "moe(E)": "moe",
    "moe": "moe",
    "mlp(-)": "mlp",
}


def _layer_counts(config: Config) -> dict[str, int]:
    """Layers by kind: full, sliding, linear, moe, mlp."""
    total = integer(config, "num_hidden_layers")
    found = dict.fromkeys(("full", "sliding", "linear", "moe", "mlp"), 0)
    for kind, n in _counts(config, "layer_type_counts").items():
        found[_KINDS.get(kind, "full")] += n
    pattern = _counts(config, "hybrid_layer_pattern_counts")
    if pattern:
        found["full"], found["sliding"] = pattern.get("0", 0), pattern.get("1", 0)
    if isinstance(config.get("linear_attn"), Mapping):
        found["full"] = -(-total // 4)
        found["linear"] = total - found["full"]
    if not found["full"] + found["sliding"] + found["linear"]:
        every = integer(config, "full_attention_interval")
        found["full"] = total // every if every else total
        found["linear"] = total - found["full"]
    if not found["moe"] + found["mlp"]:
        dense = integer(config, "first_k_dense_replace") + _counts(config, "moe_layer_freq_counts").get(
            "0", 0
        )
        dense = min(dense, 3) if integer(config, "num_experts") else total
        found["moe"], found["mlp"] = total - dense, dense
    return found


def layers_of(config: Config) -> Layers:
    """Layers by kind, and what each costs per token."""
    n = _layer_counts(config)
    heads, dim = integer(config, "num_attention_heads"), _head_dim(config)
    kv_heads = integer(config, "num_key_value_heads") or heads
    base = {
        "full": n["full"],
        "sliding": n["sliding"],
        "linear": n["linear"],
        "moe": n["moe"],
        "mlp": n["mlp"],
    }
    state = n["linear"] * _state_bytes(config)
    if (
        _counts(config, "compress_ratios_counts")
        or integer(config, "index_topk")
        or "DSA" in str(config.get("attention"))
    ):
        return _sparse_layers(config, base, state)
    if integer(config, "kv_lora_rank") or config.get("attention") == "mla":
        latent = (integer(config, "kv_lora_rank") or 512) + (integer(config, "qk_rope_head_dim") or 64)
        return Layers(
            **base,
            pool_factor=EXACT,
            kv_elements=n["full"] * float(latent),
            state_bytes=state,
            kv_heads=1,
            head_flops=2.0 * heads * (2 * dim + 64) * n["full"],
        )
    glob, wide = integer(config, "num_global_key_value_heads"), integer(config, "global_head_dim")
    return Layers(
        **base,
        window=integer(config, "sliding_window"),
        state_bytes=state,
        kv_heads=max(1, glob or kv_heads),
        pool_factor=POOLS.get(str(config.get("model_type")), EXACT),
        kv_elements=n["full"] * 2.0 * (glob * wide if glob else kv_heads * dim),
        sliding_elements=n["sliding"] * 2.0 * kv_heads * dim,
        head_flops=4.0 * heads * (wide if glob else dim) * n["full"],
        window_flops=4.0 * heads * dim * n["sliding"],
    )


def _sparse_layers(config: Config, base: dict[str, int], state: float) -> Layers:
    """An index over all context (one key per token, or per pool of tokens) picks the entries that attention reads."""
    full, heads = base["full"], integer(config, "num_attention_heads")
    index_heads, index_dim = integer(config, "index_n_heads") or 32, integer(config, "index_head_dim") or 128
    picked = integer(config, "index_topk") or 2048
    ratios = _counts(config, "compress_ratios_counts")
    if ratios:  # DeepSeek V4: one latent per 4 or 128 tokens; only the former are picked from
        fine = full * ratios.get("4", 0) / max(1, sum(ratios.values()))
        coarse = full * ratios.get("128", 0) / max(1, sum(ratios.values()))
        latent, index = integer(config, "head_dim") * (fine / 4 + coarse / 128), index_dim * fine / 4
        searched, whole, read = fine / 4, coarse / 128, index + integer(config, "head_dim") * coarse / 128
    else:
        pool = 4 if "kpool 4" in str(config.get("attention")) else 1
        rope = 64 if config.get("qk_rope_head_dim") is None else integer(config, "qk_rope_head_dim")
        latent = full * ((integer(config, "kv_lora_rank") or 512) + rope)
        index = read = full * index_dim / pool
        searched, whole = full / pool, 0.0
    width = integer(config, "kv_lora_rank") or integer(config, "head_dim") or 512
    return Layers(
        **base,
        window=picked,
        kv_elements=latent + index,
        read_elements=read,
        state_bytes=state,
        kv_heads=1,
        pool_factor=COMPRESSED if ratios else EXACT,
        packed_kv_bytes=1.0 if ratios else 0.0,
        head_flops=2.0 * index_heads * index_dim * searched + 4.0 * heads * width * whole,
        window_flops=4.0 * heads * width * full,
    )


def _head_dim(config: Config) -> int:
    heads = max(1, integer(config, "num_attention_heads"))
    return (
        integer(config, "head_dim")
        or integer(config, "qk_head_dim")
        or integer(config, "hidden_size") // heads
    )


def _state_bytes(config: Config) -> float:
    """Bytes of one linear layer's state per sequence: float32 recurrent state and bf16 convolution window."""
    kda = config.get("linear_attn")
    if isinstance(kda, Mapping):
        return 4.0 * integer(kda, "num_heads") * integer(kda, "head_dim") ** 2
    if integer(config, "mamba_num_heads"):
        inner = integer(config, "mamba_num_heads") * integer(config, "mamba_head_dim")
        return inner * (4.0 * integer(config, "ssm_state_size") + 2.0 * integer(config, "conv_kernel"))
    keys = integer(config, "linear_num_key_heads") * integer(config, "linear_key_head_dim")
    values = integer(config, "linear_num_value_heads") * integer(config, "linear_value_head_dim")
    if not values:
        return 4.0 * 128 * integer(config, "hidden_size")
    return 4.0 * values * integer(config, "linear_key_head_dim") + 8.0 * (2 * keys + values)


def attention_params(config: Config) -> float:
    """Parameters of all attention and linear layers."""
    n = _layer_counts(config)
    sliding = _softmax_params(config, glob=False)
    full = _softmax_params(config, glob=True)
    return n["full"] * full + n["sliding"] * sliding + n["linear"] * _linear_params(config)


def _softmax_params(config: Config, *, glob: bool) -> float:
    hidden, heads, dim = (
        integer(config, "hidden_size"),
        integer(config, "num_attention_heads"),
        _head_dim(config),
    )
    kv_heads = integer(config, "num_key_value_heads") or heads
    if glob and integer(config, "num_global_key_value_heads"):
        kv_heads, dim = integer(config, "num_global_key_value_heads"), integer(config, "global_head_dim")
        return float(hidden * (2 * heads * dim + kv_heads * dim))  # keys and values are shared
    if _counts(config, "compress_ratios_counts"):
        q, o = integer(config, "q_lora_rank"), integer(config, "o_lora_rank")
        groups = max(1, heads * dim // 4096)
        return float(hidden * q + q * heads * dim + hidden * 2 * dim + heads * dim * o + o * groups * hidden)
    if integer(config, "kv_lora_rank"):
        return _mla_params(config)
    gated = ("full_attention_interval", "linear_num_value_heads", "attn_output_gate")
    gate = 2 if any(config.get(key) for key in gated) else 1
    return float(hidden * dim * ((gate + 1) * heads + 2 * kv_heads))


def _mla_params(config: Config) -> float:
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    rank, q = integer(config, "kv_lora_rank"), integer(config, "q_lora_rank")
    rope = integer(config, "qk_rope_head_dim") or 64
    nope, value = integer(config, "qk_nope_head_dim") or 128, integer(config, "v_head_dim") or 128
    queries = hidden * q + q * heads * (nope + rope) if q else hidden * heads * (nope + rope)
    index = integer(config, "index_n_heads") * integer(config, "index_head_dim") * (q or hidden)
    return float(
        queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden + index
    )


def _linear_params(config: Config) -> float:
    hidden = integer(config, "hidden_size")
    kda = config.get("linear_attn")
    if isinstance(kda, Mapping):
        return 4.5 * hidden * integer(kda, "num_heads") * integer(kda, "head_dim")
    if integer(config, "mamba_num_heads"):
        inner = integer(config, "mamba_num_heads") * integer(config, "mamba_head_dim")
        groups = 2 * integer(config, "n_groups") * integer(config, "ssm_state_size")
        return float(hidden * (3 * inner + groups + integer(config, "mamba_num_heads")))
    keys = integer(config, "linear_num_key_heads") * integer(config, "linear_key_head_dim")
    values = integer(config, "linear_num_value_heads") * integer(config, "linear_value_head_dim")
    return float(hidden * (2 * keys + 3 * values)) if values else 4.0 * hidden * hidden


def mixer_parts(config: Config, layers: Layers) -> list[Part]:
    """MLPs, experts and what runs beside them."""
    hidden, inner = integer(config, "hidden_size"), integer(config, "intermediate_size")
    experts, top_k = integer(config, "num_experts"), integer(config, "num_experts_per_tok")
    matrices = 2 if config.get("model_type") == "nemotron_h" or integer(config, "mamba_num_heads") else 3
    if not experts:
        size = float(matrices * hidden * inner * layers.mlp)
        return [Part(kind="mlp", params=size, active=size)]
    width = integer(config, "moe_intermediate_size") or inner
    one = matrices * (integer(config, "moe_latent_size") or hidden) * width * layers.moe
    latent = 2 * hidden * integer(config, "moe_latent_size") * layers.moe
    shared = integer(config, "moe_shared_expert_intermediate_size") or integer(
        config, "shared_expert_intermediate_size"
    )
    shared = shared or integer(config, "n_shared_experts") * width
    if config.get("model_type") == "gemma4_text":
        shared = inner  # a dense MLP runs beside the experts
    beside = float(matrices * hidden * shared * layers.moe + latent + hidden * experts * layers.moe)
    parts = [
        Part(kind="experts", params=float(one * experts), active=float(one * top_k)),
        Part(kind="shared", params=beside, active=beside),
    ]
    dense = float(matrices * hidden * inner * layers.mlp)
    return [*parts, Part(kind="mlp", params=dense, active=dense)] if dense else parts
