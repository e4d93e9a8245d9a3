"""What a deployment's own arguments fix: numbers that planning takes over, and whose flags they are. Pure.

    take_over     a variant in which what its arguments say stands in its fields, so that all of planning obeys it
    foreign       why an engine cannot be given the arguments
    share_said    how much of a node's memory the arguments give the engine
    pool_said     how large they make its KV cache
    chunk_said    how many tokens they let it prefill at a time
    in_words      what they fix, for plans

Flags are those of `vllm serve` 0.19 to 0.32, `sglang.launch_server` 0.5.12 to 0.5.23 and `trtllm-serve` 1.3.0rc12, with
dashes for underscores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from sparkfleet.knowledge.situation import parse_flags
from sparkfleet.planning.ours import Wrong, given
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

KV_BYTES = ("--kv-cache-memory-bytes", "--kv-cache-memory")
"""vLLM's KV cache on each rank, recurrent states included; `--gpu-memory-utilization` does not count for it then
(v1/worker/gpu_worker.py, determine_available_memory). The short form is the one that vLLM's own log proposes."""
KV_BLOCKS, KV_BLOCK = "--num-gpu-blocks-override", "--block-size"
"""Blocks of vLLM's KV cache, before the bytes and the share (v1/core/kv_cache_utils.py, get_kv_cache_configs), and the
tokens of one; without the second its size is the attention backend's choice (platforms/interface.py,
update_block_size_for_backend)."""
KV_TOKENS = "--max-total-tokens"
"""The most tokens of SGLang's KV cache: it takes the fewer of these and what `--mem-fraction-static` has room for
(mem_cache/kv_cache_configurator.py, _apply_token_constraints; model_runner_kv_cache_mixin.py in 0.5.12)."""
KV_SLIDING, SLIDING = "--swa-full-tokens-ratio", 0.8
"""Tokens that SGLang's sliding layers keep for each of the others', and what that is by itself (server_args.py)."""
KV_FREE = ("--kv-cache-free-gpu-memory-fraction", "--free-gpu-memory-fraction")
OWN_OPTIONS = ("--extra-llm-api-options", "--config")
"""TensorRT-LLM's share of what is free for the KV cache, and the options file, which is taken over the flags whole
(llmapi/llm_args.py, update_llm_args_with_extra_dict)."""
CHUNKED = "--chunked-prefill-size"
WHOLE = "--no-enable-chunked-prefill"
"""vLLM then prefills whole prompts, and takes its context for the most tokens of a step where nothing is said."""
WHOLE_PROMPT = 100_000_000
"""Tokens that are prefilled at a time where chunks are switched off; no prompt is longer."""


class Count(NamedTuple):
    """The largest that a flag may say, and whether it may say it as 8k or 1.5g."""

    most: int
    scaled: bool = True


COUNTS = {
    **dict.fromkeys(KV_BYTES, Count(1 << 50)),
    KV_BLOCKS: Count(1 << 40, scaled=False),
    KV_BLOCK: Count(65_536, scaled=False),
    KV_TOKENS: Count(1 << 40),
    "--max-num-batched-tokens": Count(WHOLE_PROMPT),
    "--max-num-tokens": Count(WHOLE_PROMPT, scaled=False),
    "--page-size": Count(65_536, scaled=False),
}
"""Flags whose numbers are counted. vLLM's engine/arg_utils.py says which of them are `human_readable_int`."""

MOST = {"context": 100_000_000, "concurrency": 65_536, "tp": 1024, "pp": 1024, "ep": 1024}
"""The largest that a deployment's fields may say."""

_WORDS = {
    "--gpu-memory-utilization": "{} of the memory",
    "--mem-fraction-static": "{} of the memory for weights and KV",
    "--kv-cache-dtype": "KV cache in {}",
    "--attention-backend": "attention by {}",
    "--quantization": "weights read by {}",
    **dict.fromkeys(KV_BYTES, "KV cache of {} bytes on each rank"),
    KV_BLOCKS: "KV cache of {} blocks",
    KV_TOKENS: "KV cache of at most {} tokens",
    **dict.fromkeys(KV_FREE, "{} of what is free for the KV cache, which is not counted"),
    "--extra-llm-api-options": "an options file of its own, which is not counted",
    "--max-num-batched-tokens": "prefill {} tokens at a time",
    "--chunked-prefill-size": "prefill {} tokens at a time",
    "--max-num-tokens": "prefill {} tokens at a time",
}
_BATCH = "--max-num-batched-tokens"
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


def take_over(variant: Variant) -> tuple[Variant, tuple[Wrong, ...]]:
    """The variant with what its arguments say in its own fields; and where they say something else than those do."""
    flags = parse_flags(variant.engine_args)
    wrong = [*given(flags, variant.env), *_bad_shares(flags), *_bad_counts(flags)]
    wrong += [*_own_speculation(variant, flags), *_ignored(flags)]
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
    taken = variant.model_copy(update=fields) if fields else variant
    return taken, (*wrong, *_short_chunks(taken, flags))


_NUMBER = re.compile(r"(\d{1,15})(\.\d{1,9})?([kKmMgGtT]?)", re.ASCII)
_SCALES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
}


def _whole(text: str, most: int, *, scaled: bool = True) -> int | None:
    """A number from 1 to `most` as engines read it: vLLM takes 32k for 32,000, 1.5k for 1,500 and 32K for 32,768."""
    found = _NUMBER.fullmatch(text)
    if found is None or (found[3] and not scaled) or (found[2] and not found[3].islower()):
        return None
    value = (
        int(float(found[1] + found[2]) * _SCALES[found[3]]) if found[2] else int(found[1]) * _SCALES[found[3]]
    )
    return value if 0 < value <= most else None


def _count(flags: Mapping[str, str], flag: str) -> int | None:
    """What a flag of COUNTS says; None where it is not there, or says no such number."""
    known = COUNTS[flag]
    return _whole(flags[flag], known.most, scaled=known.scaled) if flag in flags else None


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


def _bad_counts(flags: Mapping[str, str]) -> Iterator[Wrong]:
    for flag, known in COUNTS.items():
        if flag in flags and _count(flags, flag) is None:
            yield _no_number(flag, flags[flag], f"a whole number from 1 to {known.most}")
    if CHUNKED in flags and _chunk(flags[CHUNKED]) is None:
        yield _no_number(
            CHUNKED, flags[CHUNKED], f"a whole number from 1 to {WHOLE_PROMPT}, or -1 for no chunks"
        )
    if KV_BLOCKS in flags and KV_BLOCK not in flags:
        yield Wrong(
            f"{KV_BLOCKS} says how many blocks, and how large one is depends on the attention that vLLM chooses",
            f"give {KV_BLOCK} too, or say {KV_BYTES[0]} instead",
        )


def _ignored(flags: Mapping[str, str]) -> Iterator[Wrong]:
    """A share that TensorRT-LLM would take from its options file, in which the plan's own KV cache stands."""
    if any(flag in flags for flag in OWN_OPTIONS):
        return
    for flag in KV_FREE:
        if flag in flags:
            yield Wrong(
                f"{flag} is without effect: the options file that sparkfleet writes says how large the KV cache is",
                "leave it out, and say `context` and `concurrency`: the KV cache is made for them",
            )


def _short_chunks(variant: Variant, flags: Mapping[str, str]) -> Iterator[Wrong]:
    """Chunks with which an engine does not start (vLLM: config/scheduler.py; SGLang: "divisible by page_size")."""
    batch, chunk, page = _count(flags, _BATCH), _chunk(flags.get(CHUNKED, "")), _count(flags, "--page-size")
    if batch is not None and variant.concurrency is not None and batch < variant.concurrency:
        yield Wrong(
            f"{_BATCH}={flags[_BATCH]} is less than the {variant.concurrency} requests that are asked for at once, "
            "and vLLM needs a token for each",
            f"give {_BATCH} at least {variant.concurrency}, or ask for at most {batch} at once",
        )
    if batch is not None and WHOLE in flags and batch < (variant.context or 0):
        yield Wrong(
            f"{_BATCH}={flags[_BATCH]} is less than the context of {variant.context} that is asked for, "
            "and without chunked prefill vLLM takes no longer prompts",
            f"leave out {WHOLE}, or give {_BATCH} at least {variant.context}",
        )
    if chunk and page and chunk != WHOLE_PROMPT and chunk % page:
        yield Wrong(
            f"{CHUNKED}={chunk} is no multiple of --page-size={page}, and SGLang starts with multiples only",
            f"give {CHUNKED} {max(1, chunk // page) * page}",
        )


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


class KvPool(NamedTuple):
    """The KV cache that the arguments give the engine on every rank, in bytes or in tokens."""

    said: str
    """The flag with its value."""
    bytes: int | None = None
    tokens: int | None = None
    blocks: bool = False
    """Told in blocks: of so many tokens where all layers keep all tokens."""
    sliding: float = 1.0
    """Tokens that sliding layers keep for each of the others'."""


@lru_cache(maxsize=512)
def pool_said(args: tuple[str, ...], engine: str) -> KvPool | None:
    """The KV cache that the arguments give the engine; None where they leave it to a share of the memory."""
    flags = parse_flags(args)
    if engine == "vllm":
        return _blocks_said(flags) or next(_bytes_said(flags), None)
    tokens = _count(flags, KV_TOKENS) if engine == "sglang" else None
    if tokens is None:
        return None
    whole = "--disable-hybrid-swa-memory" in flags
    sliding = 1.0 if whole else (_share(flags.get(KV_SLIDING, "")) or SLIDING)
    return KvPool(f"{KV_TOKENS}={flags[KV_TOKENS]}", tokens=tokens, sliding=sliding)


def _blocks_said(flags: Mapping[str, str]) -> KvPool | None:
    blocks, block = _count(flags, KV_BLOCKS), _count(flags, KV_BLOCK)
    if blocks is None or block is None:
        return None
    return KvPool(f"{KV_BLOCKS}={blocks}", tokens=blocks * block, blocks=True)


def _bytes_said(flags: Mapping[str, str]) -> Iterator[KvPool]:
    for flag in KV_BYTES:
        size = _count(flags, flag)
        if size is not None:
            yield KvPool(f"{flag}={flags[flag]}", bytes=size)


def chunk_said(args: tuple[str, ...], flag: str) -> int | None:
    """Tokens that are prefilled at a time, as `flag` says it among the arguments; None where it does not."""
    flags = parse_flags(args)
    if flag == CHUNKED:
        return _chunk(flags.get(flag, ""))
    if flag == _BATCH and flag not in flags and WHOLE in flags:
        return WHOLE_PROMPT
    return _count(flags, flag) if flag in COUNTS else None


def _chunk(text: str) -> int | None:
    """SGLang's chunk: 0 and less switch chunks off (managers/scheduler.py)."""
    if re.fullmatch(r"0|-\d{1,9}", text, re.ASCII):
        return WHOLE_PROMPT
    return _whole(text, WHOLE_PROMPT, scaled=False)


def in_words(args: tuple[str, ...]) -> tuple[str, ...]:
    """What the arguments fix, each in a few words: "0.87 of the memory"."""
    flags = parse_flags(args)
    fixed = [_word(flag, words, flags[flag]) for flag, words in _WORDS.items() if flag in flags]
    sizes = [
        _FIELD_WORDS[name].format(flags[flag]) for flag, name in (SIZES | DEGREES).items() if flag in flags
    ]
    drafts = ["drafts as its own flags say, which are not predicted"] if _drafts(flags) else []
    return (*fixed, *sizes, *drafts)


def _word(flag: str, words: str, text: str) -> str:
    if flag == CHUNKED and _chunk(text) == WHOLE_PROMPT:
        return "prefill whole prompts"
    return words.format(text)
