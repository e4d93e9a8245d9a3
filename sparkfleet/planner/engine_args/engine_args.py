"""Reads the numbers in a deployment's `engine_args` as the engine reads them. Pure.

    share_given    how much of a node's memory they give the engine
    pool_given     how large they make its KV cache
    chunk_given    how many tokens they let it prefill at a time
    kv_type_given  in which precision they let it keep keys and values

Flags are those of `vllm serve` 0.19 to 0.32, `sglang.launch_server` 0.5.12 to 0.5.23, `trtllm-serve` 1.3.0rc12 and
`llama-server` b11434, with dashes for underscores. A text that the engine would not take is None here, and refused by
`user_overrides`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.memory.engine_sizes import WHOLE_PROMPT

MEMORY_FLAGS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
EAGER_FLAGS = {"vllm": "--enforce-eager", "sglang": "--disable-cuda-graph", "trtllm": "", "llama.cpp": ""}
"""Flags that switch CUDA graphs off; "" if there is none."""
KV_FLAG = "--kv-cache-dtype"
KV_TYPE_FLAGS = (("--cache-type-k", "-ctk"), ("--cache-type-v", "-ctv"))
"""llama.cpp's types of cached keys and of cached values, each in full and short; f16 by itself (common/arg.cpp)."""
UBATCH = ("--ubatch-size", "-ub")
"""Tokens of one pass of llama.cpp."""

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
CHUNKED = "--chunked-prefill-size"
BATCHED = "--max-num-batched-tokens"
WHOLE = "--no-enable-chunked-prefill"
"""vLLM then prefills whole prompts, and uses its context as the most tokens of a step if no flag sets them."""


class Count(NamedTuple):
    """Largest value of a flag, and if it may be written as 8k or 1.5g."""

    most: int
    scaled: bool = True


COUNTS = {
    **dict.fromkeys(KV_BYTES, Count(1 << 50)),
    KV_BLOCKS: Count(1 << 40, scaled=False),
    KV_BLOCK: Count(65_536, scaled=False),
    KV_TOKENS: Count(1 << 40),
    BATCHED: Count(WHOLE_PROMPT),
    "--max-num-tokens": Count(WHOLE_PROMPT, scaled=False),
    "--page-size": Count(65_536, scaled=False),
    **dict.fromkeys(UBATCH, Count(WHOLE_PROMPT, scaled=False)),
}
"""Flags whose numbers are counted. vLLM's engine/arg_utils.py marks some of them as `human_readable_int`."""

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


LIMITS = (*MEMORY_FLAGS.values(), *KV_BYTES, KV_BLOCKS, KV_TOKENS)
"""Flags that limit an engine's memory."""


@lru_cache(maxsize=512)
def share_given(args: tuple[str, ...], engine: str) -> float | None:
    """The share of a node's memory that the arguments give the engine; None if they give none."""
    return share_of(parse_flags(args).get(MEMORY_FLAGS.get(engine, ""), ""))


class KvPool(NamedTuple):
    """The KV cache that the arguments give the engine on every rank, in bytes or in tokens."""

    label: str
    """The flag with its value."""
    bytes: int | None = None
    tokens: int | None = None
    blocks: bool = False
    """Set in blocks: of so many tokens if all layers keep all tokens."""
    sliding: float = 1.0
    """Tokens that sliding layers keep for each of the others'."""


@lru_cache(maxsize=512)
def pool_given(args: tuple[str, ...], engine: str) -> KvPool | None:
    """The KV cache that the arguments give the engine; None if they leave it to a share of the memory."""
    flags = parse_flags(args)
    if engine == "vllm":
        return _blocks_given(flags) or next(_bytes_given(flags), None)
    tokens = count_given(flags, KV_TOKENS) if engine == "sglang" else None
    if tokens is None:
        return None
    whole = "--disable-hybrid-swa-memory" in flags
    sliding = 1.0 if whole else (share_of(flags.get(KV_SLIDING, "")) or SLIDING)
    return KvPool(f"{KV_TOKENS}={flags[KV_TOKENS]}", tokens=tokens, sliding=sliding)


def _blocks_given(flags: Mapping[str, str]) -> KvPool | None:
    blocks, block = count_given(flags, KV_BLOCKS), count_given(flags, KV_BLOCK)
    if blocks is None or block is None:
        return None
    return KvPool(f"{KV_BLOCKS}={blocks}", tokens=blocks * block, blocks=True)


def _bytes_given(flags: Mapping[str, str]) -> Iterator[KvPool]:
    for flag in KV_BYTES:
        size = count_given(flags, flag)
        if size is not None:
            yield KvPool(f"{flag}={flags[flag]}", bytes=size)


def chunk_given(args: tuple[str, ...], flag: str) -> int | None:
    """Tokens that are prefilled at a time, as set by `flag` among the arguments; None if it is not."""
    flags = parse_flags(args)
    if flag == CHUNKED:
        return sglang_chunk(flags.get(flag, ""))
    if flag == BATCHED and flag not in flags and WHOLE in flags:
        return WHOLE_PROMPT
    if flag in UBATCH:
        return next((count_given(flags, one) for one in UBATCH if one in flags), None)
    return count_given(flags, flag) if flag in COUNTS else None


def kv_type_given(args: tuple[str, ...], engine: str) -> str | None:
    """The precision of the KV cache that the arguments set; None if they set none.

    Of llama.cpp's two the one with more bits, "f16" if only one is set: what is needed is not underestimated.
    """
    flags = parse_flags(args)
    if engine != "llama.cpp":
        return flags.get(KV_FLAG)
    types = [next((flags[one] for one in names if one in flags), None) for names in KV_TYPE_FLAGS]
    given = [one for one in types if one is not None]
    if not given:
        return None
    return given[0] if len(set(types)) == 1 else max((one or "f16" for one in types), key=_kv_bits)


def _kv_bits(name: str) -> int:
    """Whole bits in the name of a type ("q8_0")."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else 16


def sglang_chunk(text: str) -> int | None:
    """SGLang's chunk: 0 and less switch chunks off (managers/scheduler.py)."""
    if re.fullmatch(r"0|-\d{1,9}", text, re.ASCII):
        return WHOLE_PROMPT
    return whole_number(text, WHOLE_PROMPT, scaled=False)


def count_given(flags: Mapping[str, str], flag: str) -> int | None:
    """Value of a flag of COUNTS; None if it is absent or no such number."""
    known = COUNTS[flag]
    return whole_number(flags[flag], known.most, scaled=known.scaled) if flag in flags else None


def whole_number(text: str, most: int, *, scaled: bool = True) -> int | None:
    """A number from 1 to `most` as engines read it: vLLM takes 32k for 32,000, 1.5k for 1,500 and 32K for 32,768."""
    found = _NUMBER.fullmatch(text)
    if found is None or (found[3] and not scaled) or (found[2] and not found[3].islower()):
        return None
    value = (
        int(float(found[1] + found[2]) * _SCALES[found[3]]) if found[2] else int(found[1]) * _SCALES[found[3]]
    )
    return value if 0 < value <= most else None


def share_of(text: str) -> float | None:
    """A share of the memory, above 0 and up to 1; None if the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 1.0 else None
