"""Facts that rules refer to: those of a candidate, over those of its checkpoint, image and nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm
from typing import Any, NamedTuple

from sparkfleet.checkpoints.arch.layers import LayerGroup, LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.knowledge.engines.advisories import advisories_of
from sparkfleet.knowledge.engines.engine_models import loading
from sparkfleet.knowledge.engines.images import engine_version_of, images_of
from sparkfleet.knowledge.rules.rule_context import FACTS, FactKind, Feature, RuleContext, parse_flags
from sparkfleet.planner.engine_args.engine_args import (
    BATCHED,
    CHUNKED,
    EAGER_FLAGS,
    KV_BLOCKS,
    KV_BYTES,
    KV_FLAG,
    KV_TOKENS,
    MEMORY_FLAGS,
    UBATCH,
    kv_type_given,
)
from sparkfleet.planner.rules.group_splits import divides_expert_groups, divides_groups, divides_widths
from sparkfleet.planner.types.plan import READ_FILES, Candidate, GroupShape

_GDN_MODELS = ("qwen3_next", "qwen3_5", "qwen4")
"""Starts of the `model_type` of Gated DeltaNet hybrids (Qwen3-Next, Qwen3.5, 3.6 and 3.8)."""
_MAMBA_MODELS = ("nemotron_h", "mamba", "falcon_h1", "jamba", "bamba")
_METHOD_QUANTS = {
    ("gptq", "int4"): "gptq-int4",
    ("gptq", "int8"): "gptq-int8",
    ("awq", "int4"): "awq",
    ("auto-round", "int4"): "int4-autoround",
    ("bitsandbytes", "int8"): "bnb-int8",
}
"""Names that rules give a format of one method of quantisation; others go by the format alone."""

_FLAG_FACTS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "--attention-backend": "attention_backend",
        "--moe-backend": "moe_backend",
        "--linear-backend": "linear_backend",
        "--gdn-prefill-backend": "gdn_backend",
        KV_FLAG: "kv_dtype",
        "--load-format": "load_format",
        "--distributed-executor-backend": "executor",
        BATCHED: "batch_tokens",
        MEMORY_FLAGS["vllm"]: "memory_fraction",
    },
    "sglang": {
        "--attention-backend": "attention_backend",
        "--moe-runner-backend": "moe_backend",
        "--fp4-gemm-backend": "linear_backend",
        "--linear-attn-backend": "gdn_backend",
        KV_FLAG: "kv_dtype",
        "--load-format": "load_format",
        CHUNKED: "batch_tokens",
        MEMORY_FLAGS["sglang"]: "memory_fraction",
    },
    "llama.cpp": {
        "--load-mode": "load_format",
        "-lm": "load_format",
        **dict.fromkeys(UBATCH, "batch_tokens"),
    },
}
"""Flags and the facts that they set (`vllm serve` 0.19 to 0.32, `sglang.launch_server` 0.5.12 to 0.5.23, `llama-server`
b11434)."""

_CHOSEN = ("attention_backend", "moe_backend", "linear_backend", "gdn_backend", "kv_dtype", "load_format")
"""Facts that are "auto" if no flag sets them."""

_POOL_FLAGS = {"vllm": (*KV_BYTES, KV_BLOCKS), "sglang": (KV_TOKENS,)}
"""Flags that fix how large the KV cache is."""


def situation_of(candidate: Candidate, known: RuleContext | None = None) -> RuleContext:
    """All facts of a candidate, over those `known` about its checkpoint, its nodes and its links."""
    facts = _given(candidate) | _from_flags(candidate)
    fields: dict[str, Any] = dict(known or RuleContext()) | {
        name: value for name, value in facts.items() if value is not None
    }
    fields["loading"] = loading(
        candidate.engine, fields.get("engine_version"), fields.get("model_type"), fields.get("architecture")
    )
    fields["advisories"] = advisories_of(candidate.engine, fields.get("engine_version"))
    return RuleContext.model_validate(fields)


def _given(candidate: Candidate) -> dict[str, object]:
    shape = candidate.shape
    image, _, digest = (candidate.image or "").partition("@")
    return {
        "device": candidate.device,
        "engine": candidate.engine,
        "engine_version": candidate.engine_version or None,
        "runtime": candidate.runtime,
        "image": image,
        "image_digest": digest,
        "model": candidate.model,
        "speculation": candidate.speculation.method,
        "speculation_tokens": float(candidate.speculation.tokens),
        "context": float(candidate.context),
        "concurrency": float(candidate.concurrency),
        "memory_fraction": candidate.memory_fraction,
        "memory_fraction_set": candidate.memory_fraction is not None,
        "kv_disk": candidate.kv_disk_bytes is not None,
        "kv_pinned": candidate.kv_cache_bytes is not None,
        "flags": candidate.engine_args if candidate.mmap else (*candidate.engine_args, READ_FILES),
        "env": candidate.env,
        "tp": float(shape.tp),
        "pp": float(shape.pp),
        "ep": float(shape.ep),
        "dcp": float(shape.dcp),
        "nodes": float(shape.ranks),
    }


def _from_flags(candidate: Candidate) -> dict[str, object]:
    names = _FLAG_FACTS.get(candidate.engine)
    if names is None:
        return {}
    flags = parse_flags(candidate.engine_args)
    found: dict[str, object] = dict.fromkeys(_CHOSEN, "auto")
    if candidate.engine == "vllm":
        found["executor"] = "mp"  # engines/vllm.py joins ranks by --nnodes, never by Ray
    given = {fact: flags[flag] for flag, fact in names.items() if flag in flags}
    found |= {fact: _number(text) if FACTS[fact] is FactKind.NUMBER else text for fact, text in given.items()}
    if "memory_fraction" in given:
        found["memory_fraction_set"] = True
    if candidate.engine == "llama.cpp" and (kept := kv_type_given(candidate.engine_args, candidate.engine)):
        found["kv_dtype"] = kept
    if any(flag in flags for flag in _POOL_FLAGS.get(candidate.engine, ())):
        found["kv_pinned"] = True
    found["cuda_graphs"] = EAGER_FLAGS[candidate.engine] not in flags
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def checkpoint_situation(checkpoint: Checkpoint, shape: GroupShape) -> RuleContext:
    """Facts of a checkpoint on a fleet in `shape`. Weights per node are an even share."""
    gb = checkpoint.loaded_bytes / 1e9
    return RuleContext(
        model=checkpoint.id,
        model_type=checkpoint.model_type,
        architecture=next(iter(checkpoint.architectures), None),
        quant=checkpoint_quant(checkpoint),
        quant_method=_declared_method(checkpoint),
        features=_features(checkpoint),
        weight_gb=gb,
        weight_gb_per_node=gb / shape.ranks,
        tp_divides_heads=all(_divides(group, shape.tp) for group in checkpoint.layers),
        tp_divides_blocks=_divides_blocks(checkpoint, shape),
        expert_block=_expert_block(checkpoint, shape),
        tp_divides_widths=divides_widths(checkpoint, shape),
        tp_divides_groups=divides_groups(checkpoint, shape),
        tp_divides_expert_groups=divides_expert_groups(checkpoint, shape),
    )


def _divides_blocks(checkpoint: Checkpoint, shape: GroupShape) -> bool | None:
    """Checks if ranks have whole blocks of FP8 of all that is no routed expert; None if it is not known."""
    blocks = {part: _fp8_block(checkpoint, part) for part in (Part.MLP, Part.SHARED_EXPERTS)}
    if not any(blocks.values()):
        return True
    widths = checkpoint.widths
    if widths is None:
        return None
    split = [(width, blocks[Part.MLP]) for width in widths.dense] + [
        (widths.shared, blocks[Part.SHARED_EXPERTS])
    ]
    uneven = [block for width, block in split if block and width % (shape.tp * block.whole)]
    return not uneven if all(block.known for block in uneven) else None


def _expert_block(checkpoint: Checkpoint, shape: GroupShape) -> float | None:
    block = _fp8_block(checkpoint, Part.EXPERTS)
    if block is None:
        return 0.0
    # With expert parallelism a rank has fewer experts, each of them whole if EP has as many ranks as TP.
    split = max(1, shape.tp // shape.ep)
    if checkpoint.widths is None or not checkpoint.widths.routed or checkpoint.widths.routed % split:
        return None
    columns = checkpoint.widths.routed // split
    if columns % block.whole == 0:
        return 0.0
    return float(gcd(block.common, columns, checkpoint.hidden_size)) if block.known else None


class _Fp8Block(NamedTuple):
    whole: int
    """Columns of a rank have to be a multiple of it: they are rows of one matrix and columns of the next."""
    common: int
    """The largest square into which such blocks can be divided."""
    known: bool
    """False: assumed from a name, or the config lists parts that are not quantised by patterns that cannot be read."""


def _fp8_block(checkpoint: Checkpoint, part: Part) -> _Fp8Block | None:
    """The blocks in which a part is stored; None if it is not in such blocks, or the model has no such part."""
    quantization = checkpoint.quantization
    if quantization is None:
        return None
    blocks = [
        _Fp8Block(
            lcm(*one.scheme.block), gcd(*one.scheme.block), known=not (one.assumed or quantization.unread)
        )
        for one in quantization.covers
        if one.part is part and one.scheme is not None and one.scheme.block is not None
    ]
    return max(blocks, default=None)


def _declared_method(checkpoint: Checkpoint) -> str:
    quantization = checkpoint.quantization
    if quantization is None or any(cover.assumed for cover in quantization.covers):
        return "undeclared"
    return quantization.method


def checkpoint_quant(checkpoint: Checkpoint) -> str:
    """Format of most of a checkpoint's quantised weights, as rules name it (as images do: `quant_of` of sizing.py)."""
    quantization = checkpoint.quantization
    if checkpoint.gguf is not None:
        tag = checkpoint.gguf.tag.lower()
        return tag if tag == "gguf" else f"gguf-{tag}"
    if quantization is None:
        # Weights of 32 bits are loaded in 16 (`Portion.loaded_bytes`).
        return "fp16" if checkpoint.dtype == "float16" else "bf16"
    stored = quantization.scheme.format
    return _METHOD_QUANTS.get((quantization.method, stored), stored)


def _features(checkpoint: Checkpoint) -> tuple[Feature, ...]:
    kinds = {group.kind for group in checkpoint.layers if group.layers}
    quantization = checkpoint.quantization
    head = quantization is not None and any(
        cover.part is Part.HEAD and cover.scheme is not None and cover.scheme.format == "nvfp4"
        for cover in quantization.covers
    )
    linear = LayerKind.LINEAR in kinds
    present: dict[Feature, bool] = {
        "moe": checkpoint.experts > 0,
        "gdn": linear and checkpoint.model_type.startswith(_GDN_MODELS),
        "mamba": linear and checkpoint.model_type.startswith(_MAMBA_MODELS),
        "hybrid": linear and bool(kinds - {LayerKind.LINEAR, LayerKind.NONE}),
        "mla": LayerKind.MLA in kinds,
        "sliding": LayerKind.SLIDING in kinds,
        # A config that declares a tower is taken at its word until the weight map is there.
        "vision": checkpoint.declares_vision if checkpoint.vision is None else checkpoint.vision,
        "nvfp4_head": head,
    }
    return tuple(name for name, there in present.items() if there)


def _divides(group: LayerGroup, tp: int) -> bool:
    """Query heads are shared out; KV heads are shared out, or copied if there are fewer than ranks."""
    kv = group.kv_heads
    return group.query_heads % tp == 0 and (kv == 0 or kv % tp == 0 or tp % kv == 0)


def image_situation(reference: str) -> RuleContext:
    """Facts about an image: its name, the engine inside, its libraries. "" means no image."""
    tagged, _, digest = reference.partition("@")
    known = images_of(reference) if reference else ()
    inside = known[0] if len(known) == 1 else None
    return RuleContext(
        image=tagged,
        image_digest=digest,
        engine_version=engine_version_of(reference) if reference else None,
        nccl_version=inside.library("nccl") if inside else None,
        flashinfer_version=inside.library("flashinfer") if inside else None,
        cutlass_version=inside.library("cutlass") if inside else None,
        ptxas_version=inside.library("ptxas") if inside else None,
        fastsafetensors_version=inside.library("fastsafetensors") if inside else None,
    )
