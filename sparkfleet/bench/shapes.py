"""Shapes of a model that a published measurement names: from a config, a sibling's, or its size.

Configs come as `config.json` or as the summary of one in `knowledge/measurements/configs.json`, often without some of their
keys; where a real checkpoint is planned for, `facts.checkpoint` reads it exactly and nothing here is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sparkfleet.knowledge.measurements import siblings
from sparkfleet.planning.arch import Arch, Layers, Part, PartKind, shape_family

Config = Mapping[str, object]
Configs = Mapping[str, Config]


class Declined(Exception):
    """Something that cannot be predicted; the message is the reason, in words that can be counted."""


def from_config(name: str, config: Config) -> Arch | None:
    """Shapes from a `config.json` (text part) or the research form of it; None where it says too little.

    Weights are bf16 until `quantised`. Formulas follow the public model definitions of each architecture; what a
    config leaves out but states as `params_total_b` / `params_active_b` goes to the experts and to the attention.
    """
    if not _int(config, "hidden_size") or not _int(config, "num_hidden_layers"):
        return _from_stated(name, config)
    hidden, vocab = _int(config, "hidden_size"), _int(config, "vocab_size") or 150_000
    layers = _layers(config)
    parts = [Part(kind="embedding", params=hidden * vocab, active=0.0)]
    parts.append(
        Part(
            kind="head",
            params=0.0 if config.get("tie_word_embeddings") else hidden * vocab,
            active=float(hidden * vocab),
        )
    )
    attention = _attention_params(config)
    parts.append(Part(kind="attention", params=attention, active=attention))
    parts += _mixer_parts(config, layers)
    experts = _int(config, "num_experts")
    arch = Arch(
        name=name,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        parts=tuple(parts),
        experts=experts,
        top_k=_int(config, "num_experts_per_tok"),
        mtp_layers=_int(config, "num_nextn_predict_layers") or _int(config, "mtp_num_hidden_layers"),
        basis="config.json",
    )
    arch = arch.model_copy(update={"family": shape_family(arch)})
    return _stated(arch, _float(config, "params_total_b"), _float(config, "params_active_b"))


def from_counts(name: str, total_b: float, active_b: float, *, family: str = "", notes: str = "") -> Arch:
    """Shapes from parameter counts (billions) alone, by the proportions that models of that size have.

    A dense 8B has 4096 × 34 layers, a 30B-A3B MoE 2048 × 48: width grows with the cube root of the active
    parameters, depth with the rest. `notes` may say "sliding", "gdn", "mamba", "mla" as benchmarks do.
    """
    moe = active_b < 0.8 * total_b
    scale = math.sqrt(total_b * active_b) if moe else total_b
    hidden = (
        int(64 * round((4096 * (scale / 8) ** 0.36) / 64))
        if not moe
        else int(64 * round(2048 * (scale / 9.5) ** 0.4 / 64))
    )
    blocks = max(8, round(34 * (scale / 8) ** 0.27))
    vocab = 150_000
    head = hidden * vocab
    attention = (0.25 if not moe else 0.35) * max(1e8, active_b * 1e9 - head)
    routed = max(1e8, active_b * 1e9 - head - attention)
    hybrid = any(word in notes for word in ("gdn", "mamba", "linear", "conv", "kda"))
    full = max(1, round(blocks / 4)) if hybrid else blocks
    sliding = round(full * 0.8) if "sliding" in notes else 0
    kv_heads, width = (1, 576) if "mla" in notes or "csa" in notes else (8, 2 * 128 * (4 if moe else 8))
    layers = Layers(
        full=full - sliding,
        sliding=sliding,
        linear=blocks - full,
        moe=blocks if moe else 0,
        mlp=0 if moe else blocks,
        window=1024 if sliding else 0,
        kv_elements=float((full - sliding) * width),
        sliding_elements=float(sliding * width),
        state_bytes=(blocks - full) * hidden * 512.0,
        kv_heads=kv_heads,
        head_flops=4.0 * hidden * (full - sliding),
        window_flops=4.0 * hidden * sliding,
    )
    parts = (
        Part(kind="embedding", params=float(head), active=0.0),
        Part(kind="head", params=float(head) if total_b > 4 else 0.0, active=float(head)),
        Part(kind="attention", params=attention, active=attention),
        Part(kind="experts", params=max(routed, total_b * 1e9 - 2 * head - attention), active=routed)
        if moe
        else Part(kind="mlp", params=routed, active=routed),
    )
    return Arch(
        name=name,
        family=family or name,
        hidden=hidden,
        vocab=vocab,
        parts=parts,
        layers=layers,
        experts=128 if moe else 0,
        top_k=max(1, round(128 * routed / parts[3].params)) if moe else 0,
        basis="parameter counts",
    )


def _from_stated(name: str, config: Config) -> Arch | None:
    total, active = _float(config, "params_total_b"), _float(config, "params_active_b")
    if not total:
        return None
    return from_counts(
        name, total, active or total, family=plain(name), notes=str(config.get("attention", ""))
    )


def _stated(arch: Arch, total_b: float, active_b: float) -> Arch:
    """Move what the shapes do not explain of the stated counts to the experts (total) and the attention (active)."""
    parts = {part.kind: part for part in arch.parts}
    attention = parts["attention"]
    if active_b and abs(active_b * 1e9 - arch.active) > 0.1 * arch.active:
        more = max(active_b * 1e9 - arch.active, -0.7 * attention.params)
        size = attention.params + more
        parts["attention"] = attention.model_copy(update={"params": size, "active": size})
    kind: PartKind = "experts" if "experts" in parts else "mlp"
    if total_b and kind in parts:
        more = total_b * 1e9 - sum(part.params for part in parts.values())
        if abs(more) > 0.03 * total_b * 1e9 and parts[kind].params + more > 0:
            size = parts[kind].params + more
            update = {"params": size} if kind == "experts" else {"params": size, "active": size}
            parts[kind] = parts[kind].model_copy(update=update)
    return arch.model_copy(update={"parts": tuple(parts.values())})


def _counts(config: Config, key: str) -> dict[str, int]:
    value = config.get(key)
    return {str(k): int(v) for k, v in value.items()} if isinstance(value, Mapping) else {}


def _int(config: Config, key: str) -> int:
    value = config.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _float(config: Config, key: str) -> float:
    value = config.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


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
    total = _int(config, "num_hidden_layers")
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
        every = _int(config, "full_attention_interval")
        found["full"] = total // every if every else total
        found["linear"] = total - found["full"]
    if not found["moe"] + found["mlp"]:
        dense = _int(config, "first_k_dense_replace") + _counts(config, "moe_layer_freq_counts").get("0", 0)
        dense = min(dense, 3) if _int(config, "num_experts") else total
        found["moe"], found["mlp"] = total - dense, dense
    return found


def _layers(config: Config) -> Layers:
    n = _layer_counts(config)
    heads, dim = _int(config, "num_attention_heads"), _head_dim(config)
    kv_heads = _int(config, "num_key_value_heads") or heads
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
        or _int(config, "index_topk")
        or "DSA" in str(config.get("attention"))
    ):
        return _sparse_layers(config, base, state)
    if _int(config, "kv_lora_rank") or config.get("attention") == "mla":
        latent = (_int(config, "kv_lora_rank") or 512) + (_int(config, "qk_rope_head_dim") or 64)
        return Layers(
            **base,
            kv_elements=n["full"] * float(latent),
            state_bytes=state,
            kv_heads=1,
            head_flops=2.0 * heads * (2 * dim + 64) * n["full"],
        )
    glob, wide = _int(config, "num_global_key_value_heads"), _int(config, "global_head_dim")
    return Layers(
        **base,
        window=_int(config, "sliding_window"),
        state_bytes=state,
        kv_heads=max(1, glob or kv_heads),
        kv_elements=n["full"] * 2.0 * (glob * wide if glob else kv_heads * dim),
        sliding_elements=n["sliding"] * 2.0 * kv_heads * dim,
        head_flops=4.0 * heads * (wide if glob else dim) * n["full"],
        window_flops=4.0 * heads * dim * n["sliding"],
    )


def _sparse_layers(config: Config, base: dict[str, int], state: float) -> Layers:
    """An index over all context (one key per token, or per pool of tokens) picks the entries that attention reads."""
    full, heads = base["full"], _int(config, "num_attention_heads")
    index_heads, index_dim = _int(config, "index_n_heads") or 32, _int(config, "index_head_dim") or 128
    picked = _int(config, "index_topk") or 2048
    ratios = _counts(config, "compress_ratios_counts")
    if ratios:  # DeepSeek V4: one latent per 4 or 128 tokens; only the former are picked from
        fine = full * ratios.get("4", 0) / max(1, sum(ratios.values()))
        coarse = full * ratios.get("128", 0) / max(1, sum(ratios.values()))
        latent, index = _int(config, "head_dim") * (fine / 4 + coarse / 128), index_dim * fine / 4
        searched, whole, read = fine / 4, coarse / 128, index + _int(config, "head_dim") * coarse / 128
    else:
        pool = 4 if "kpool 4" in str(config.get("attention")) else 1
        latent = full * ((_int(config, "kv_lora_rank") or 512) + (_int(config, "qk_rope_head_dim") or 64))
        index = read = full * index_dim / pool
        searched, whole = full / pool, 0.0
    width = _int(config, "kv_lora_rank") or _int(config, "head_dim") or 512
    return Layers(
        **base,
        window=picked,
        kv_elements=latent + index,
        read_elements=read,
        state_bytes=state,
        kv_heads=1,
        head_flops=2.0 * index_heads * index_dim * searched + 4.0 * heads * width * whole,
        window_flops=4.0 * heads * width * full,
    )


def _head_dim(config: Config) -> int:
    heads = max(1, _int(config, "num_attention_heads"))
    return _int(config, "head_dim") or _int(config, "qk_head_dim") or _int(config, "hidden_size") // heads


def _state_bytes(config: Config) -> float:
    """Bytes of one linear layer's state per sequence: float32 recurrent state and bf16 convolution window."""
    kda = config.get("linear_attn")
    if isinstance(kda, Mapping):
        return 4.0 * _int(kda, "num_heads") * _int(kda, "head_dim") ** 2
    if _int(config, "mamba_num_heads"):
        inner = _int(config, "mamba_num_heads") * _int(config, "mamba_head_dim")
        return inner * (4.0 * _int(config, "ssm_state_size") + 2.0 * _int(config, "conv_kernel"))
    keys = _int(config, "linear_num_key_heads") * _int(config, "linear_key_head_dim")
    values = _int(config, "linear_num_value_heads") * _int(config, "linear_value_head_dim")
    if not values:
        return 4.0 * 128 * _int(config, "hidden_size")
    return 4.0 * values * _int(config, "linear_key_head_dim") + 8.0 * (2 * keys + values)


def _attention_params(config: Config) -> float:
    n = _layer_counts(config)
    sliding = _softmax_params(config, glob=False)
    full = _softmax_params(config, glob=True)
    return n["full"] * full + n["sliding"] * sliding + n["linear"] * _linear_params(config)


def _softmax_params(config: Config, *, glob: bool) -> float:
    hidden, heads, dim = _int(config, "hidden_size"), _int(config, "num_attention_heads"), _head_dim(config)
    kv_heads = _int(config, "num_key_value_heads") or heads
    if glob and _int(config, "num_global_key_value_heads"):
        kv_heads, dim = _int(config, "num_global_key_value_heads"), _int(config, "global_head_dim")
        return float(hidden * (2 * heads * dim + kv_heads * dim))  # keys and values are shared
    if _counts(config, "compress_ratios_counts"):
        q, o = _int(config, "q_lora_rank"), _int(config, "o_lora_rank")
        groups = max(1, heads * dim // 4096)
        return float(hidden * q + q * heads * dim + hidden * 2 * dim + heads * dim * o + o * groups * hidden)
    if _int(config, "kv_lora_rank"):
        return _mla_params(config)
    gate = 2 if _int(config, "full_attention_interval") or _int(config, "linear_num_value_heads") else 1
    return float(hidden * dim * ((gate + 1) * heads + 2 * kv_heads))


def _mla_params(config: Config) -> float:
    hidden, heads = _int(config, "hidden_size"), _int(config, "num_attention_heads")
    rank, q = _int(config, "kv_lora_rank"), _int(config, "q_lora_rank")
    rope = _int(config, "qk_rope_head_dim") or 64
    nope, value = _int(config, "qk_nope_head_dim") or 128, _int(config, "v_head_dim") or 128
    queries = hidden * q + q * heads * (nope + rope) if q else hidden * heads * (nope + rope)
    index = _int(config, "index_n_heads") * _int(config, "index_head_dim") * (q or hidden)
    return float(
        queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden + index
    )


def _linear_params(config: Config) -> float:
    hidden = _int(config, "hidden_size")
    kda = config.get("linear_attn")
    if isinstance(kda, Mapping):
        return 4.5 * hidden * _int(kda, "num_heads") * _int(kda, "head_dim")
    if _int(config, "mamba_num_heads"):
        inner = _int(config, "mamba_num_heads") * _int(config, "mamba_head_dim")
        groups = 2 * _int(config, "n_groups") * _int(config, "ssm_state_size")
        return float(hidden * (3 * inner + groups + _int(config, "mamba_num_heads")))
    keys = _int(config, "linear_num_key_heads") * _int(config, "linear_key_head_dim")
    values = _int(config, "linear_num_value_heads") * _int(config, "linear_value_head_dim")
    return float(hidden * (2 * keys + 3 * values)) if values else 4.0 * hidden * hidden


def _mixer_parts(config: Config, layers: Layers) -> list[Part]:
    hidden, inner = _int(config, "hidden_size"), _int(config, "intermediate_size")
    experts, top_k = _int(config, "num_experts"), _int(config, "num_experts_per_tok")
    matrices = 2 if config.get("model_type") == "nemotron_h" or _int(config, "mamba_num_heads") else 3
    if not experts:
        size = float(matrices * hidden * inner * layers.mlp)
        return [Part(kind="mlp", params=size, active=size)]
    width = _int(config, "moe_intermediate_size") or inner
    one = matrices * (_int(config, "moe_latent_size") or hidden) * width * layers.moe
    latent = 2 * hidden * _int(config, "moe_latent_size") * layers.moe
    shared = _int(config, "moe_shared_expert_intermediate_size") or _int(
        config, "shared_expert_intermediate_size"
    )
    shared = shared or _int(config, "n_shared_experts") * width
    if config.get("model_type") == "gemma4_text":
        shared = inner  # a dense MLP runs beside the experts
    beside = float(matrices * hidden * shared * layers.moe + latent + hidden * experts * layers.moe)
    parts = [
        Part(kind="experts", params=float(one * experts), active=float(one * top_k)),
        Part(kind="shared", params=beside, active=beside),
    ]
    dense = float(matrices * hidden * inner * layers.mlp)
    return [*parts, Part(kind="mlp", params=dense, active=dense)] if dense else parts


def find_arch(
    name: str, configs: Configs, *, total_b: float | None, active_b: float | None, notes: str
) -> Arch:
    """Shapes of a model: its config, a sibling's, its stated size, or the size in its name.

    Args:
        name: as published, with or without owner and format.
        configs: what is known by name, see `knowledge.measurements.architectures`.
        total_b: parameters in billions where they are stated; likewise `active_b`.
        notes: words about the architecture ("moe gdn hybrid").

    Raises:
        Declined: none of these is known.
    """
    found = _by_name(name, configs)
    if found is not None:
        return found
    named_total, named_active = _size_in_name(name)
    total, active = total_b or named_total, active_b or named_active
    if total is None:
        raise Declined("model not known and its size not given")
    sibling = _by_size(total, active, notes, configs)
    if sibling is not None:
        return sibling
    if active is None and "moe" in notes:
        raise Declined("active parameters not given")
    return from_counts(name, total, active or total, family=plain(name), notes=notes)


_FORMAT_WORDS = (
    r"ud|gguf|nvfp4|mxfp4|fp8|bf16|fp16|int4|int8\w*|gptq|awq|autoround|exl3|i?q\d\w*|w4a16|[\d.]+bpw|4bit"
    r"|it|instruct|mtp|sm121|static|pertensor"
)


def plain(name: str) -> str:
    """A model's name without owner, format and version of its post-training: what siblings share."""
    owner, slash, rest = name.rpartition("/")
    text = (rest if slash and " " not in owner else name).lower()
    text = re.sub(r"\.gguf$|\(.*", "", text)
    text = re.sub(rf"[-_ ]({_FORMAT_WORDS})\b.*", "", text)
    return text.strip(" -_")


def _by_name(name: str, configs: Configs) -> Arch | None:
    aliases = configs.get("_aliases", {})
    key = plain(name)
    for pattern, entry in siblings():
        if entry in configs and re.search(pattern, key):
            return from_config(name, configs[entry])
    entry = str(aliases.get(name, name))
    if entry in configs:
        return from_config(name, configs[entry])
    same = next((k for k in configs if plain(k) == key and not k.startswith("_")), None)
    return from_config(name, configs[same]) if same else None


def _size_in_name(name: str) -> tuple[float | None, float | None]:
    moe = re.search(r"(\d+(?:\.\d+)?)b-a(\d+(?:\.\d+)?)b", name.lower())
    if moe:
        return float(moe.group(1)), float(moe.group(2))
    small = re.search(r"(?:^|[-_ ])(\d+)m(?:$|[-_ ])", name.lower())
    dense = re.search(r"(?:^|[-_ :e])(\d+(?:\.\d+)?)b(?:$|[-_ )])", name.lower())
    if dense:
        return float(dense.group(1)), float(dense.group(1)) if float(dense.group(1)) < 33 else None
    return (int(small.group(1)) / 1000,) * 2 if small else (None, None)


def _by_size(total: float, active: float | None, notes: str, configs: Configs) -> Arch | None:
    """A Qwen3.5 sibling by its size: many fine-tunes are named after their maker only."""
    sizes = {27: "Qwen/Qwen3.5-27B", 35: "Qwen/Qwen3.5-35B-A3B"}
    entry = sizes.get(round(total))
    if (
        entry is not None
        and entry in configs
        and ("gdn" in notes or (not notes and (active in (3, total, None))))
    ):
        return from_config(entry, configs[entry])
    return None
