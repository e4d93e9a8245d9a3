"""Reads the numbers that a deployment's own arguments fix, and rejects those that cannot be used. Pure.

    take_over     a variant whose fields have the values of its arguments, so that all of planning obeys them
    misread       reason why the weights cannot be read with the arguments
    in_words      what they fix, for plans

`engine_args` reads the numbers, `flag_engines` has the engines of flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkfleet.knowledge.models.gguf_formats import gguf_name
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.memory.engine_sizes import WHOLE_PROMPT
from sparkfleet.planner.engine_args.engine_args import (
    BATCHED,
    CHUNKED,
    COUNTS,
    KV_BLOCK,
    KV_BLOCKS,
    KV_BYTES,
    KV_FLAG,
    KV_TOKENS,
    KV_TYPE_FLAGS,
    MEMORY_FLAGS,
    UBATCH,
    WHOLE,
    count_given,
    sglang_chunk,
    share_of,
    whole_number,
)
from sparkfleet.planner.engine_args.reserved_flags import ReservedFlag, given
from sparkfleet.planner.types.group_share import requests_share
from sparkfleet.specs.deployment import SpeculationChoice, Variant
from sparkfleet.specs.flag_fields import DEGREES, SIZES
from sparkfleet.specs.parallel import Parallel
from sparkfleet.specs.remote_code import code_risks

KV_FREE = ("--kv-cache-free-gpu-memory-fraction", "--free-gpu-memory-fraction")
OWN_OPTIONS = ("--extra-llm-api-options", "--config")
"""TensorRT-LLM's share of what is free for the KV cache, and the options file, which is taken over the flags whole
(llmapi/llm_args.py, update_llm_args_with_extra_dict)."""

MOST = {"context": 100_000_000, "concurrency": 65_536, **dict.fromkeys(("tp", "pp", "ep", "dcp"), 1024)}
"""Largest values of a deployment's fields."""

_WORDS = {
    MEMORY_FLAGS["vllm"]: "{} of the memory",
    MEMORY_FLAGS["sglang"]: "{} of the memory for weights and KV",
    KV_FLAG: "KV cache in {}",
    "--attention-backend": "attention backend {}",
    "--quantization": "weights loaded by {}",
    **dict.fromkeys(KV_BYTES, "KV cache of {} bytes on each rank"),
    KV_BLOCKS: "KV cache of {} blocks",
    KV_TOKENS: "KV cache of at most {} tokens",
    **dict.fromkeys(KV_FREE, "{} of the free memory for the KV cache, not counted"),
    "--extra-llm-api-options": "its own options file, not counted",
    BATCHED: "prefill {} tokens at a time",
    CHUNKED: "prefill {} tokens at a time",
    "--max-num-tokens": "prefill {} tokens at a time",
    **dict.fromkeys(UBATCH, "prefill {} tokens at a time"),
    **dict.fromkeys(KV_TYPE_FLAGS[0], "cached keys in {}"),
    **dict.fromkeys(KV_TYPE_FLAGS[1], "cached values in {}"),
}
_FIELD_WORDS = {
    "context": "context {}",
    "concurrency": "concurrency {}",
    "tp": "TP={}",
    "pp": "PP={}",
    "ep": "EP={}",
    "dcp": "DCP={}",
}

_READERS = {
    "gptq": ("gptq-int4", "gptq-int8", "int4-autoround"),
    "gptq_marlin": ("gptq-int4", "gptq-int8", "int4-autoround"),
    "awq": ("awq",),
    "awq_marlin": ("awq",),
    "modelopt_fp4": ("nvfp4",),
}
"""Values of --quantization that read one kind of weights only, and which."""


def take_over(variant: Variant) -> tuple[Variant, tuple[ReservedFlag, ...]]:
    """The variant with the values of its arguments in its fields; and contradictions between the two."""
    flags = parse_flags(variant.engine_args)
    llama_cpp = is_for_llama_cpp(variant)
    wrong = [*given(flags, variant.env, llama_cpp=llama_cpp), *_bad_shares(flags), *_bad_counts(flags)]
    wrong += [*_own_speculation(variant, flags), *_ignored(flags)]
    wrong += [ReservedFlag(risk.reason, risk.remedy) for risk in code_risks(variant)]
    fields: dict[str, object] = {}
    degrees = {} if variant.parallel is None else variant.parallel.model_dump()
    for flag, name in (SIZES | DEGREES).items():
        if flag not in flags or flags[flag] in ("auto", "-1"):  # vLLM then takes what fits
            continue
        value = whole_number(flags[flag], MOST[name])
        field_value = degrees.get(name) if flag in DEGREES else getattr(variant, name)
        if value is None:
            wrong.append(_no_number(flag, flags[flag], f"a whole number from 1 to {MOST[name]}"))
        elif field_value not in (None, value):
            wrong.append(_contradiction(flag, flags[flag], name, field_value))
        elif flag in DEGREES:
            degrees[name] = value
        else:
            fields[name] = value
    wrong += _undivided(degrees)
    if degrees and not wrong:
        fields["parallel"] = Parallel.model_validate(degrees)
    if variant.speculation.method == "auto" and _drafts(flags):
        fields["speculation"] = SpeculationChoice(method="none")
    taken = variant.model_copy(update=fields) if fields else variant
    return taken, (*wrong, *_short_chunks(taken, flags))


def _undivided(degrees: Mapping[str, int | None]) -> Iterator[ReservedFlag]:
    """Ranks that share a KV cache without dividing TP, by fields and arguments together."""
    tp, dcp = degrees.get("tp"), degrees.get("dcp")
    if tp and dcp and tp % dcp:
        yield ReservedFlag(
            f"DCP={dcp} does not divide TP={tp}: ranks cannot share one KV cache so",
            "set --decode-context-parallel-size (`dcp`) to a divisor of --tensor-parallel-size (`tp`)",
        )


def is_for_llama_cpp(variant: Variant) -> bool:
    """True if a variant's arguments are llama.cpp's: it sets that engine, or names a GGUF and no engine."""
    named = gguf_name(variant.model) is not None or variant.model.lower().endswith(".gguf")
    return variant.engine == "llama.cpp" or (variant.engine == "auto" and named)


def requests_given(args: tuple[str, ...]) -> int | None:
    """Requests at once that the arguments set for each engine; None if they set none."""
    flags = parse_flags(args)
    found = (
        whole_number(flags[flag], MOST[name])
        for flag, name in SIZES.items()
        if name == "concurrency" and flag in flags
    )
    return next((number for number in found if number is not None), None)


def _bad_shares(flags: Mapping[str, str]) -> Iterator[ReservedFlag]:
    for flag in MEMORY_FLAGS.values():
        if flag in flags and share_of(flags[flag]) is None:
            yield _no_number(flag, flags[flag], "a share of the memory, such as 0.85")


def _bad_counts(flags: Mapping[str, str]) -> Iterator[ReservedFlag]:
    for flag, known in COUNTS.items():
        if flag in flags and count_given(flags, flag) is None:
            yield _no_number(flag, flags[flag], f"a whole number from 1 to {known.most}")
    if CHUNKED in flags and sglang_chunk(flags[CHUNKED]) is None:
        yield _no_number(
            CHUNKED, flags[CHUNKED], f"a whole number from 1 to {WHOLE_PROMPT}, or -1 for no chunks"
        )
    if KV_BLOCKS in flags and KV_BLOCK not in flags:
        yield ReservedFlag(
            f"{KV_BLOCKS} is a number of blocks, whose size depends on the attention backend that vLLM chooses",
            f"set {KV_BLOCK} too, or {KV_BYTES[0]} instead",
        )


def _ignored(flags: Mapping[str, str]) -> Iterator[ReservedFlag]:
    """A share that TensorRT-LLM would take from its options file, which contains the plan's own KV cache."""
    if any(flag in flags for flag in OWN_OPTIONS):
        return
    for flag in KV_FREE:
        if flag in flags:
            yield ReservedFlag(
                f"{flag} has no effect: the options file that sparkfleet writes sets the size of the KV cache",
                "leave it out, and set `context` and `concurrency`: the KV cache is sized for them",
            )


def _short_chunks(variant: Variant, flags: Mapping[str, str]) -> Iterator[ReservedFlag]:
    """Chunks with which an engine does not start (vLLM: config/scheduler.py; SGLang: "divisible by page_size")."""
    batch, chunk, page = (
        count_given(flags, BATCHED),
        sglang_chunk(flags.get(CHUNKED, "")),
        count_given(flags, "--page-size"),
    )
    groups = 1 if requests_given(variant.engine_args) else variant.replicas or 1
    each = 0 if variant.concurrency is None else requests_share(variant.concurrency, groups)
    if batch is not None and batch < each:
        yield ReservedFlag(
            f"{BATCHED}={flags[BATCHED]} is less than the concurrency of {each}{' in each replica' * (groups > 1)}, "
            "and vLLM needs a token for each request",
            f"set {BATCHED} to at least {each}, or `concurrency` to at most {batch * groups}",
        )
    if batch is not None and WHOLE in flags and batch < (variant.context or 0):
        yield ReservedFlag(
            f"{BATCHED}={flags[BATCHED]} is less than the context of {variant.context}, "
            "and without chunked prefill vLLM accepts no longer prompts",
            f"leave out {WHOLE}, or set {BATCHED} to at least {variant.context}",
        )
    if chunk and page and chunk != WHOLE_PROMPT and chunk % page:
        yield ReservedFlag(
            f"{CHUNKED}={chunk} is no multiple of --page-size={page}, which SGLang requires",
            f"set {CHUNKED} to {max(1, chunk // page) * page}",
        )


def _own_speculation(variant: Variant, flags: Mapping[str, str]) -> Iterator[ReservedFlag]:
    own = next((flag for flag in flags if flag.startswith(OWN_DRAFTS)), None)
    if own is not None and variant.speculation.method not in ("auto", "none"):
        yield ReservedFlag(
            f"`speculation: {variant.speculation.method}` and {own} both configure speculation",
            "leave one of the two out",
        )


OWN_DRAFTS = ("--speculative-config", "--spec-method", "--spec-model", "--speculative-algorithm")
"""Flags by which a deployment's own arguments set speculation; vLLM takes keys of its config as flags, too
(`--speculative-config.method`)."""


def _drafts(flags: Mapping[str, str]) -> bool:
    return any(flag.startswith(OWN_DRAFTS) for flag in flags)


def _no_number(flag: str, text: str, wanted: str) -> ReservedFlag:
    return ReservedFlag(f"{flag} is {text!r}, not {wanted}", f"set {flag} to {wanted}")


def _contradiction(flag: str, text: str, name: str, field_value: object) -> ReservedFlag:
    field = (
        f"`parallel: {{{name}: {field_value}}}`"
        if name in Parallel.model_fields
        else f"`{name}: {field_value}`"
    )
    return ReservedFlag(
        f"{field} and {flag}={text} in engine_args contradict each other",
        f"leave {flag} out of engine_args, or {field} out of the deployment",
    )


def misread(args: tuple[str, ...], quant: str) -> str:
    """Reason why weights stored as `quant` cannot be read with the arguments; "" if they can, or it is not known."""
    value = parse_flags(args).get("--quantization", "")
    able = _READERS.get(value, (quant,))
    if not quant or quant in able:
        return ""
    return f"--quantization={value} in engine_args is for {' or '.join(able)} weights, but these are {quant}"


def in_words(args: tuple[str, ...]) -> tuple[str, ...]:
    """Values that the arguments fix, each in a few words: "0.87 of the memory"."""
    flags = parse_flags(args)
    fixed = [_word(flag, words, flags[flag]) for flag, words in _WORDS.items() if flag in flags]
    sizes = [
        _FIELD_WORDS[name].format(flags[flag]) for flag, name in (SIZES | DEGREES).items() if flag in flags
    ]
    drafts = ["speculation by its own flags, not predicted"] if _drafts(flags) else []
    return (*fixed, *sizes, *drafts)


def _word(flag: str, words: str, text: str) -> str:
    if flag == CHUNKED and sglang_chunk(text) == WHOLE_PROMPT:
        return "prefill whole prompts"
    return words.format(text)
