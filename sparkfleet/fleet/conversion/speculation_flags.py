"""Speculation that an engine's flags set, as the field of a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkfleet.fleet.conversion.engine_line import EngineLine
from sparkfleet.knowledge.engines.method_support import names_of, support_of

_KEYS = {"method": "method", "model": "draft", "num_speculative_tokens": "tokens"}
_VLLM_PLAIN = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens",
    "--speculative-model": "model", "--num-speculative-tokens": "num_speculative_tokens"}  # fmt: skip
"""Flags of single keys: vLLM's of today, and those that it had until 0.8."""
_LLAMA_CPP_TOKENS = ("--spec-draft-n-max", "--draft-max", "--draft-n", "--draft")
_LLAMA_CPP_DRAFT = (
    "--spec-draft-hf",
    "--hf-repo-draft",
    "-hfd",
    "-hfrd",
    "--spec-draft-model",
    "--model-draft",
    "-md",
)


class ReadSpeculation(NamedTuple):
    """The field, the flags that it replaces, and what they set besides."""

    field: Mapping[str, Any]
    """`method`, and `tokens` and `draft` if they are set."""
    flags: frozenset[str]
    """Names as they are written."""
    rest: tuple[str, ...] = ()
    """Keys without a field, each with its value."""


def speculation_of(line: EngineLine) -> ReadSpeculation | None:
    """The speculation of a launch line; None if it sets none, or one that the field cannot name."""
    if line.engine == "vllm":
        return _vllm(line)
    if line.engine == "sglang":
        return _sglang(line)
    return _llama_cpp(line) if line.engine == "llama.cpp" else None


def _vllm(line: EngineLine) -> ReadSpeculation | None:
    config: dict[str, Any] = {}
    flags: set[str] = set()
    for flag in line.flags:
        name, _, key = flag.plain.partition(".")
        if name in ("--speculative-config", "-sc"):
            try:
                read = json.loads(flag.value) if not key else {key.replace("-", "_"): flag.value}
            except ValueError:
                return None
            if not isinstance(read, dict):
                return None
            config |= read
        elif flag.plain in _VLLM_PLAIN:
            config[_VLLM_PLAIN[flag.plain]] = flag.value
        else:
            continue
        flags.add(flag.name)
    method = str(config.get("method") or ("draft_model" if "model" in config else ""))
    named = "mtp" if method.endswith("_mtp") else "ngram" if config.get("model") == "[ngram]" else method
    rest = tuple(f"{key}: {json.dumps(value)}" for key, value in config.items() if key not in _KEYS)
    tokens, draft = config.get("num_speculative_tokens"), config.get("model")
    return _read("vllm", named, flags, tokens=tokens, draft=draft, rest=rest)


def _sglang(line: EngineLine) -> ReadSpeculation | None:
    own = {flag.plain: flag for flag in line.flags if flag.plain.startswith("--speculative-")}
    given = {name: flag.value for name, flag in own.items()}
    name = given.get("--speculative-algorithm", given.get("--speculative-algo", "")).upper()
    draft = given.get("--speculative-draft-model-path") or given.get("--speculative-draft-model")
    if name == "EAGLE" and draft is None:
        name = "NEXTN"  # its other name, with the checkpoint's own head
    by_window = name in ("DFLASH", "NGRAM")
    tokens = given.get("--speculative-num-draft-tokens" if by_window else "--speculative-num-steps")
    tokens = given.get("--speculative-dspark-block-size", tokens) if name == "DSPARK" else tokens
    known = {"--speculative-algorithm", "--speculative-algo", "--speculative-draft-model-path", "--speculative-draft-model",
        "--speculative-num-steps", "--speculative-num-draft-tokens", "--speculative-dspark-block-size"}  # fmt: skip
    rest = tuple(f"{flag} {value}".strip() for flag, value in given.items() if flag not in known)
    flags = {flag.name for flag in own.values()}
    return _read("sglang", name, flags, tokens=tokens, draft=draft, rest=rest)


def _llama_cpp(line: EngineLine) -> ReadSpeculation | None:
    flags = {
        flag.name
        for flag in line.flags
        if flag.name in ("--spec-type", *_LLAMA_CPP_TOKENS, *_LLAMA_CPP_DRAFT)
    }
    draft = line.first(*_LLAMA_CPP_DRAFT)
    name = line.first("--spec-type") or ("draft-simple" if draft else "")
    name = "ngram-simple" if name.startswith("ngram") else name
    return _read("llama.cpp", name, flags, tokens=line.first(*_LLAMA_CPP_TOKENS), draft=draft)


def _read(
    engine: str, name: str, flags: set[str], *, tokens: object, draft: object, rest: tuple[str, ...] = ()
) -> ReadSpeculation | None:
    """The field by an engine's own name for a method; a DFlash2 draft has DFlash's, and is known by its own."""
    named = {method for method, own in names_of(engine).items() if own == name}
    if "dflash2" in named:
        named = {"dflash2" if "dflash2" in str(draft).lower() else "dflash"}
    if not flags or not named:
        return None
    method = "nextn" if "nextn" in named else min(named)
    field: dict[str, Any] = {"method": method}
    count = int(str(tokens)) if str(tokens).isdigit() else 0
    support = support_of(engine, method)
    if support is not None and support.block == "window":
        count -= 1
    if count > 0:
        field["tokens"] = count
    if isinstance(draft, str) and method not in ("ngram", "mtp", "nextn"):
        field["draft"] = draft
    return ReadSpeculation(field, frozenset(flags), rest)
