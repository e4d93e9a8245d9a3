"""What a deployment's own arguments fix: numbers that planning takes over, and whose flags they are. Pure.

    take_over     a variant in which what its arguments say stands in its fields, so that all of planning obeys it
    foreign       why an engine cannot be given the arguments
    share_said    how much of a node's memory the arguments give the engine
    in_words      what they fix, for plans

Flags are those of `vllm serve` 0.19 to 0.32, `sglang.launch_server` 0.5.12 to 0.5.23 and `trtllm-serve` 1.3.0rc12, with
dashes for underscores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from sparkfleet.knowledge.situation import parse_flags
from sparkfleet.planning.plan import ENGINE_LABELS
from sparkfleet.spec.deployment import EngineName, Parallel, SpeculationChoice, Variant

MEMORY_FLAGS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
KV_FLAG = "--kv-cache-dtype"

SIZES = {
    "--max-model-len": "context",
    "--context-length": "context",
    "--max-seq-len": "context",
    "--max-num-seqs": "concurrency",
    "--max-running-requests": "concurrency",
    "--max-batch-size": "concurrency",
}
"""Flags that say what a field of the deployment says."""

DEGREES = {
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--tp-size": "tp",
    "--tp": "tp",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--pp-size": "pp",
    "--expert-parallel-size": "ep",
    "--moe-expert-parallel-size": "ep",
    "--ep-size": "ep",
    "--ep": "ep",
}
"""The same for the fields of `parallel`."""

MOST = {"context": 100_000_000, "concurrency": 65_536, "tp": 1024, "pp": 1024, "ep": 1024}
"""The largest that a deployment's fields may say."""

_WORDS = {
    "--gpu-memory-utilization": "{} of the memory",
    "--mem-fraction-static": "{} of the memory for weights and KV",
    "--kv-cache-dtype": "KV cache in {}",
    "--attention-backend": "attention by {}",
    "--quantization": "weights read by {}",
    "--max-num-batched-tokens": "prefill {} tokens at a time",
    "--chunked-prefill-size": "prefill {} tokens at a time",
    "--max-num-tokens": "prefill {} tokens at a time",
}
_FIELD_WORDS = {
    "context": "context {}",
    "concurrency": "concurrency {}",
    "tp": "TP={}",
    "pp": "PP={}",
    "ep": "EP={}",
}

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
        "--no-enable-prefix-caching", "--override-generation-config", "--safetensors-load-strategy",
        "--speculative-config",
    },
    "sglang": _BOTH | {
        "--chunked-prefill-size", "--context-length", "--cuda-graph-max-bs", "--disable-cuda-graph",
        "--disable-overlap-schedule", "--disable-radix-cache", "--fp4-gemm-backend", "--fp8-gemm-backend",
        "--linear-attn-backend", "--max-prefill-tokens", "--max-running-requests", "--max-total-tokens",
        "--mem-fraction-static", "--moe-runner-backend", "--page-size", "--sampling-backend", "--schedule-policy",
        "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-eagle-topk",
        "--speculative-num-draft-tokens", "--speculative-num-steps", "--tp-size", "--pp-size", "--ep-size",
    },
    "trtllm": frozenset({
        "--chat-template", "--enable-chunked-prefill", "--ep-size", "--extra-llm-api-options",
        "--kv-cache-free-gpu-memory-fraction", "--max-batch-size", "--max-num-tokens", "--max-seq-len",
        "--pipeline-parallel-size", "--pp-size", "--reasoning-parser", "--revision", "--tensor-parallel-size",
        "--tool-parser", "--tp-size", "--trust-remote-code",
    }),
}  # fmt: skip
"""Flags by which arguments tell whose they are; not all that there are."""

_VLLM_VALUES = {KV_FLAG: ("fp8", "fp8_inc", "fp8_ds_mla")}
"""Values that SGLang does not take of flags that both have; it calls the first fp8_e4m3."""


_READERS = {
    "gptq": ("gptq-int4", "int4-autoround"),
    "gptq_marlin": ("gptq-int4", "int4-autoround"),
    "awq": ("awq",),
    "awq_marlin": ("awq",),
    "modelopt_fp4": ("nvfp4",),
}
"""Values of --quantization that read one kind of weights only, and which."""


class Wrong(NamedTuple):
    """Arguments that cannot be obeyed."""

    reason: str
    remedy: str


def take_over(variant: Variant) -> tuple[Variant, tuple[Wrong, ...]]:
    """The variant with what its arguments say in its own fields; and where they say something else than those do."""
    flags = parse_flags(variant.engine_args)
    wrong = [*_bad_shares(flags), *_own_speculation(variant, flags)]
    fields: dict[str, object] = {}
    degrees = {} if variant.parallel is None else variant.parallel.model_dump()
    for flag, name in (SIZES | DEGREES).items():
        if flag not in flags or flags[flag] in ("auto", "-1"):  # vLLM then takes what fits
            continue
        value = _whole(flags[flag], MOST[name])
        said = degrees.get(name) if flag in DEGREES else getattr(variant, name)
        if value is None:
            wrong.append(_no_number(flag, flags[flag], f"a whole number from 1 to {MOST[name]}"))
        elif said not in (None, value):
            wrong.append(_contradiction(flag, flags[flag], name, said))
        elif flag in DEGREES:
            degrees[name] = value
        else:
            fields[name] = value
    if degrees:
        fields["parallel"] = Parallel.model_validate(degrees)
    if variant.speculation.method == "auto" and _drafts(flags):
        fields["speculation"] = SpeculationChoice(method="none")
    return (variant.model_copy(update=fields) if fields else variant), tuple(wrong)


def _whole(text: str, most: int) -> int | None:
    """A number from 1 to `most` as engines read it: vLLM takes 32k for 32,000 and 32K for 32,768."""
    scale = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1 << 20}.get(text[-1:], 0)
    digits = text[:-1] if scale else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        return None
    value = int(digits) * (scale or 1)
    return value if 0 < value <= most else None


def _bad_shares(flags: Mapping[str, str]) -> Iterator[Wrong]:
    for flag in MEMORY_FLAGS.values():
        if flag in flags and _share(flags[flag]) is None:
            yield _no_number(flag, flags[flag], "a share of the memory, such as 0.85")


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 1.0 else None


def _own_speculation(variant: Variant, flags: Mapping[str, str]) -> Iterator[Wrong]:
    if "--speculative-config" in flags and variant.speculation.method not in ("auto", "none"):
        yield Wrong(
            f"`speculation: {variant.speculation.method}` and --speculative-config both say how to draft",
            "leave one of the two out",
        )


def _drafts(flags: Mapping[str, str]) -> bool:
    return "--speculative-config" in flags or "--speculative-algorithm" in flags


def _no_number(flag: str, text: str, wanted: str) -> Wrong:
    return Wrong(f"{flag} says {text!r}, which is not {wanted}", f"give {flag} {wanted}")


def _contradiction(flag: str, text: str, name: str, said: object) -> Wrong:
    field = f"`parallel: {{{name}: {said}}}`" if name in ("tp", "pp", "ep") else f"`{name}: {said}`"
    return Wrong(
        f"{field} and {flag}={text} in engine_args contradict each other",
        f"leave {flag} out of engine_args, or {field} out of the deployment",
    )


def foreign(args: tuple[str, ...], engine: EngineName, *, alone: bool) -> str:
    """Why `engine` cannot be given the arguments; "" where it can.

    Args:
        args: the deployment's own.
        engine: one that could serve it.
        alone: no other engine could, so that flags which nobody knows are taken for its own.
    """
    for flag, value in parse_flags(args).items():
        owners = [name for name, flags in KNOWN.items() if flag in flags]
        if engine == "sglang" and value in _VLLM_VALUES.get(flag, ()):
            return f"{flag}={value} in engine_args is for {ENGINE_LABELS['vllm']}"
        if owners and engine not in owners:
            theirs = " or ".join(ENGINE_LABELS[name] for name in owners)
            return f"{flag} in engine_args is for {theirs}"
        if not owners and not alone:
            return f"whose flag {flag} in engine_args is, is not known: say it with `engine`"
    return ""


def misread(args: tuple[str, ...], quant: str) -> str:
    """Why weights that are stored as `quant` cannot be read as the arguments say; "" where they can, or it is not known."""
    value = parse_flags(args).get("--quantization", "")
    able = _READERS.get(value, (quant,))
    if not quant or quant in able:
        return ""
    return f"--quantization={value} in engine_args reads {' or '.join(able)}, and the weights are {quant}"


@lru_cache(maxsize=512)
def share_said(args: tuple[str, ...], engine: str) -> float | None:
    """The share of a node's memory that the arguments give the engine; None where they give none."""
    return _share(parse_flags(args).get(MEMORY_FLAGS.get(engine, ""), ""))


def in_words(args: tuple[str, ...]) -> tuple[str, ...]:
    """What the arguments fix, each in a few words: "0.87 of the memory"."""
    flags = parse_flags(args)
    fixed = [words.format(flags[flag]) for flag, words in _WORDS.items() if flag in flags]
    sizes = [
        _FIELD_WORDS[name].format(flags[flag]) for flag, name in (SIZES | DEGREES).items() if flag in flags
    ]
    drafts = ["drafts as its own flags say, which are not predicted"] if _drafts(flags) else []
    return (*fixed, *sizes, *drafts)
