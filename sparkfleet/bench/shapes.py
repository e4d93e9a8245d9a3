"""Shapes of a model that a published measurement names: from a config, a sibling's, or its size.

Configs come as `config.json` or as the summary of one in `knowledge/measurements/configs.json`, often without some of their
keys; where a real checkpoint is planned for, `facts.checkpoint` reads it exactly and nothing here is used.
"""

from __future__ import annotations

import math
import re
from functools import cache

from sparkfleet.bench.configs import summary
from sparkfleet.bench.layers import (
    Config,
    Configs,
    Declined,
    attention_params,
    integer,
    layers_of,
    mixer_parts,
    real,
)
from sparkfleet.bench.words import folded
from sparkfleet.knowledge.measurements import siblings
from sparkfleet.planning.arch import GUESSED, Arch, Layers, Part, PartKind, shape_family

__all__ = ["Config", "Configs", "Declined", "find_arch", "from_config", "from_counts", "plain"]


def from_config(name: str, config: Config) -> Arch | None:
    """Shapes from a `config.json` (text part) or the research form of it; None where it says too little.

    Weights are bf16 until `quantised`. Formulas follow the public model definitions of each architecture; what a
    config leaves out but states as `params_total_b` / `params_active_b` goes to the experts and to the attention.
    """
    config = summary(config)
    if not integer(config, "hidden_size") or not integer(config, "num_hidden_layers"):
        return _from_stated(name, config)
    if not any(real(config, key) for key in ("intermediate_size", "num_experts", "params_total_b")):
        raise Declined("its config says too little: no intermediate_size and no experts")
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size") or 150_000
    layers = layers_of(config)
    parts = [Part(kind="embedding", params=hidden * vocab, active=0.0)]
    parts.append(
        Part(
            kind="head",
            params=0.0 if config.get("tie_word_embeddings") else hidden * vocab,
            active=float(hidden * vocab),
        )
    )
    attention = attention_params(config)
    parts.append(Part(kind="attention", params=attention, active=attention))
    parts += mixer_parts(config, layers)
    experts = integer(config, "num_experts")
    arch = Arch(
        name=name,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        parts=tuple(parts),
        experts=experts,
        top_k=integer(config, "num_experts_per_tok"),
        mtp_layers=integer(config, "num_nextn_predict_layers") or integer(config, "mtp_num_hidden_layers"),
        basis="config.json",
    )
    arch = arch.model_copy(update={"family": shape_family(arch)})
    return _stated(arch, real(config, "params_total_b"), real(config, "params_active_b"))


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
        layers=_guessed_layers(blocks, hidden, notes, moe=moe),
        experts=128 if moe else 0,
        top_k=max(1, round(128 * routed / parts[3].params)) if moe else 0,
        basis="parameter counts",
    )


def _guessed_layers(blocks: int, hidden: int, notes: str, *, moe: bool) -> Layers:
    """Layers of the kinds that the notes name, in the proportions that such models have."""
    hybrid = any(word in notes for word in ("gdn", "mamba", "linear", "conv", "kda"))
    full = max(1, round(blocks / 4)) if hybrid else blocks
    sliding = round(full * 0.8) if "sliding" in notes else 0
    kv_heads, width = (1, 576) if "mla" in notes or "csa" in notes else (8, 2 * 128 * (4 if moe else 8))
    return Layers(
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
        pool_factor=GUESSED,
        head_flops=4.0 * hidden * (full - sliding),
        window_flops=4.0 * hidden * sliding,
    )


def _from_stated(name: str, config: Config) -> Arch | None:
    total, active = real(config, "params_total_b"), real(config, "params_active_b")
    if not total:
        return None
    _believe(total, active or total)
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
    _believe(total, active or total)
    sibling = _by_size(name, total, active, notes, configs)
    if sibling is not None:
        return sibling
    if active is None and "moe" in notes:
        raise Declined("active parameters not given")
    return from_counts(name, total, active or total, family=plain(name), notes=notes)


SMALLEST, BIGGEST = 0.05, 20_000.0
"""Parameters (billions) of models that shapes are guessed for from their counts."""


def _believe(total_b: float, active_b: float) -> None:
    if not SMALLEST <= total_b <= BIGGEST or not 0.001 * total_b <= active_b <= total_b:
        raise Declined("model not known and its size not believed")


_FORMAT_WORDS = (
    r"ud|gguf|nvfp4|mxfp[48]|fp[48]|bf16|fp16|int4|int8\w*|gptq|awq|autoround|exl3|i?q\d\w*|w[48]a\d+|[\d.]+bpw|[48]bit"
    r"|it|instruct|mtp|sm121|static|pertensor"
)


_JOINS = (
    (r"(^|[-_/])qwen-(?=[0-9])", r"\1qwen"),
    (r"(gemma|glm|llama|ministral|nemotron|step|gpt)(?=[0-9.]|oss)", r"\1-"),
    (r"([0-9])b-?a([0-9])", r"\1b-a\2"),
)
"""Hyphens that some put elsewhere: "Qwen 3.6 35B A3B", "Gemma4-26B"."""


@cache
def plain(name: str) -> str:
    """A model's name without owner, format and version of its post-training: what siblings share."""
    owner, slash, rest = name.strip().rpartition("/")
    text = (rest if slash and " " not in owner else name).lower().strip()
    text = re.sub(r"\.gguf$|\(.*", "", text)
    text = re.sub(r"\s+|:", "-", text)
    for spelling, joined in _JOINS:
        text = re.sub(spelling, joined, text)
    text = re.sub(rf"[-_ ]({_FORMAT_WORDS})\b.*", "", text)
    return text.strip(" -_")


def _by_name(name: str, configs: Configs) -> Arch | None:
    aliases = configs.get("_aliases", {})
    key = plain(name)
    for pattern, entry in siblings():
        if entry in configs and re.search(pattern, key.replace("_", "-")):
            return from_config(name, configs[entry])
    entry = str(aliases.get(name, name))
    if entry in configs:
        return from_config(name, configs[entry])
    same = next((k for k in configs if plain(k) == key and not k.startswith("_")), None)
    return from_config(name, configs[same]) if same else None


def _size_in_name(name: str) -> tuple[float | None, float | None]:
    text = folded(name)
    moe = re.search(r"([0-9]+(?:\.[0-9]+)?)b-a([0-9]+(?:\.[0-9]+)?)b", text)
    if moe:
        return float(moe.group(1)), float(moe.group(2))
    small = re.search(r"(?:^|-)([0-9]+)m(?:$|-)", text)
    dense = re.search(r"(?:^|[-:e])([0-9]+(?:\.[0-9]+)?)b(?:$|[-)])", text)
    if dense:
        return float(dense.group(1)), float(dense.group(1)) if float(dense.group(1)) < 33 else None
    return (float(small.group(1)) / 1000,) * 2 if small else (None, None)


_OTHER_MAKERS = re.compile(
    r"gemma|llama|mistral|mixtral|magistral|devstral|nemotron|glm|phi-|granite|falcon|command|aya|olmo|exaone|gpt|deepseek|minimax|kimi|step-"
    r"|seed|ernie|hunyuan|lfm|jamba|internlm|solar|starcoder|coder-33b|bloom|mpt|opt-|yi-|apertus|cosmos|qwen-?[23](?!\.[5-9])"
)


def _by_size(name: str, total: float, active: float | None, notes: str, configs: Configs) -> Arch | None:
    """A Qwen3.5 sibling by its size: many fine-tunes are named after their maker only, and none after another family."""
    sizes = {27: "Qwen/Qwen3.5-27B", 35: "Qwen/Qwen3.5-35B-A3B"}
    entry = sizes.get(round(total))
    if (
        entry is not None
        and entry in configs
        and (
            "gdn" in notes
            or (not notes and active in (3, total, None) and not _OTHER_MAKERS.search(plain(name)))
        )
    ):
        return from_config(entry, configs[entry])
    return None
