"""Engines that accept a flag: a flag of a deployment excludes every other engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.planner.engine_args.engine_args import KV_FLAG
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.deployment import EngineName

_BOTH = frozenset({
    "--attention-backend", "--chat-template", "--default-chat-template-kwargs", "--download-dir", "--dtype",
    "--enable-lora", "--kv-cache-dtype", "--language-model-only", "--load-format", "--max-lora-rank",
    "--model-loader-extra-config", "--pipeline-parallel-size", "--quantization", "--reasoning-parser", "--revision",
    "--tensor-parallel-size", "--tokenizer-mode", "--tool-call-parser", "--trust-remote-code",
})  # fmt: skip
"""Flags that vLLM and SGLang have alike."""

KNOWN: Mapping[str, frozenset[str]] = {
    "vllm": _BOTH | {
        "--async-scheduling", "--block-size", "--compilation-config", "--enable-auto-tool-choice",
        "--enable-chunked-prefill", "--enable-expert-parallel", "--enable-prefix-caching", "--enforce-eager",
        "--gpu-memory-utilization", "--hf-overrides", "--kv-cache-memory-bytes", "--limit-mm-per-prompt",
        "--linear-backend", "--max-cudagraph-capture-size", "--max-model-len", "--max-num-batched-tokens",
        "--max-num-seqs", "--mm-processor-cache-type", "--moe-backend", "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching", "--num-gpu-blocks-override", "--override-generation-config",
        "--safetensors-load-strategy", "--speculative-config",
    },
    "sglang": _BOTH | {
        "--chunked-prefill-size", "--context-length", "--cuda-graph-max-bs", "--disable-cuda-graph",
        "--disable-hybrid-swa-memory", "--disable-overlap-schedule", "--disable-radix-cache", "--fp4-gemm-backend",
        "--fp8-gemm-backend",
        "--linear-attn-backend", "--max-prefill-tokens", "--max-running-requests", "--max-total-tokens",
        "--mem-fraction-static", "--moe-runner-backend", "--page-size", "--sampling-backend", "--schedule-policy",
        "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-eagle-topk",
        "--speculative-num-draft-tokens", "--speculative-num-steps", "--swa-full-tokens-ratio", "--tp-size",
        "--pp-size", "--ep-size",
    },
    "trtllm": frozenset({
        "--chat-template", "--enable-chunked-prefill", "--ep-size", "--extra-llm-api-options",
        "--free-gpu-memory-fraction", "--kv-cache-free-gpu-memory-fraction", "--max-batch-size", "--max-num-tokens",
        "--max-seq-len",
        "--pipeline-parallel-size", "--pp-size", "--reasoning-parser", "--revision", "--tensor-parallel-size",
        "--tool-parser", "--tp-size", "--trust-remote-code",
    }),
}  # fmt: skip
"""Flags that identify the engine of arguments; not all that there are."""

_VLLM_VALUES = {KV_FLAG: ("fp8", "fp8_inc", "fp8_ds_mla")}
"""Values that SGLang does not take of flags that both have; it calls the first fp8_e4m3."""


def foreign(args: tuple[str, ...], engine: EngineName, *, alone: bool) -> str:
    """Reason why `engine` cannot take the arguments; "" if it can.

    Args:
        args: the deployment's own.
        engine: one that could serve it.
        alone: no other engine could, so that unknown flags are taken for its own.
    """
    for flag, value in parse_flags(args).items():
        owners = [name for name, flags in KNOWN.items() if flag in flags]
        if engine == "sglang" and value in _VLLM_VALUES.get(flag, ()):
            return f"{flag}={value} in engine_args is for {ENGINE_LABELS['vllm']}"
        if owners and engine not in owners:
            theirs = " or ".join(ENGINE_LABELS[name] for name in owners)
            return f"{flag} in engine_args is for {theirs}"
        if not owners and not alone:
            return f"no known engine has {flag} (engine_args): set `engine`"
    return ""
