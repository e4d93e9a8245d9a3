"""One side of a published head-to-head, from its words to a row with the columns of benchmarks.csv.

A side's own words come first, then what both share (the metric and the source), then those of the other side. The rest is
assumed, and reported as assumed.
"""

from __future__ import annotations

import re

from sparkfleet.accuracy.aliases import (
    TOKENS,
    engine_in,
    lowered,
    method_in,
    number,
    published_quant,
    quant_in,
)
from sparkfleet.accuracy.models import Declined

_MODELS = (
    (r"qwen-3\.(\d)-flash-next|flash-next", "Qwen/Qwen3.8-Flash-Next"),
    (r"qwen-3\.?(\d)-(\d+b)(?:-(a\d+b))?", r"qwen3.\1-\2-\3"),
    (
        r"qwen-3-(coder-next|coder-30b-a3b|coder-30b|vl-\d+b|next-80b|\d+b-a\d+b|\d+b)",
        r"qwen3-\1",
    ),
    (r"gemma-([34])-(\d+b)(?:-(a\d+b))?", r"gemma-\1-\2-\3"),
    (r"gpt-oss-(\d+b)", r"gpt-oss-\1"),
    (r"glm-(5\.\d-flash|4\.7-flash|5\.\d|4\.7)", r"glm-\1"),
    (r"(?:deepseek|ds)-v-4\.1", "DeepSeek-V4.1-Flash"),
    (r"(?:deepseek|ds)-v?-4", "DeepSeek-V4-Flash"),
    (r"minimax-m-(\d(?:\.\d)?)", r"minimax-m\1"),
    (r"nemotron-3-nano|nemotron-nano", "nemotron-3-nano-30b-a3b"),
    (r"nemotron-3\.5-lightning", "nemotron-3.5-lightning-30b-a3b"),
    (r"nemotron-3-super|nemotron-super", "nemotron-3-super"),
    (r"llama-(3\.\d)-(\d+b)", r"llama-\1-\2"),
    (r"ornith-(?:1\.\d-)?35b", "ornith-1.0-35b"),
    (r"laguna-s", "Laguna-S-2.1"),
    (r"mimo-v-2\.5", "mimo-v2.5"),
    (r"step-(3\.\d)(?:-flash)?", r"step-\1-flash"),
    (r"agents-a-1", "agents-a1"),
    (r"ling-3\.0-flash", "ling-3.0-flash"),
    (r"muse-glimmer-30b", "muse-glimmer-30b"),
)
"""Models as people name them; a hyphen here is a hyphen, a blank, an underscore or nothing there."""
_PATTERNS = tuple((re.compile(rf"(?<![a-z]){p.replace('-', '[-_ ]?')}"), name) for p, name in _MODELS)
_OTHER = re.compile(r"\b[a-z][a-z0-9.]*(?:[-_][a-z0-9.]+)*[-_][0-9]+(?:\.[0-9]+)?b(?:-a[0-9]+b)?\b")
"""Any other name that ends in a size: "ministral-8b"."""
_HUB = re.compile(r"(?<![\w./:-])[A-Za-z][\w-]+/[A-Za-z][\w.-]+[0-9]b[\w.-]*", re.IGNORECASE)

_SERVED = {
    "glm-5": "nvfp4",
    "qwen3.8-flash-next": "nvfp4",
    "nemotron-3-super": "nvfp4",
    "minimax-m3": "nvfp4",
    "mimo": "nvfp4",
    "step-3": "nvfp4",
    "397b": "int4",
    "qwen3.6-35b": "nvfp4",
    "qwen3-coder-30b": "nvfp4",
    "agents-a1": "nvfp4",
}
"""Usual configuration on Sparks, for what neither side states (medians of benchmarks.csv)."""


def side(own: str, other: str, shared: str, remarks: str, assumed: list[str]) -> dict[str, str]:
    """A row of the columns of benchmarks.csv for one side, from words.

    Args:
        own: its words.
        other: those of the other side.
        shared: the metric and the source.
        remarks: the notes, which may name the model and the kernel; they contain results, too, so nothing else is read
            from them.
        assumed: receives the assumptions.

    Raises:
        Declined: the words name no model.
    """
    text = f"{own} {shared}"
    model = _model(own, shared, other, remarks)
    quant = _quant(model, (own, shared, other), assumed)
    row = {
        "id": "",
        "source_url_or_repo_path": shared,
        "model": model,
        "quant": quant,
        "engine": engine_in(own) or engine_in(shared) or "",
        "concurrency": _count(text, _REQUESTS),
        "prompt_tokens": _count(text, _PROMPT) or _thousands(text),
        "depth": _count(text, r"\bd(?:epth)?[ =:]*({n})"),
        "gen_tokens": _count(text, r"\btg[ =:]*({n})"),
        "kv_dtype": _kv(own) or _kv(shared),
        "notes": f"{own}; {shared}; {_kernel(quant, remarks)}head-to-head",
    }
    return row | _topology(own, other, shared) | _speculation(own, shared)


_N = r"[0-9][0-9,]*(?:\.[0-9]+)?k?"
_MANY = r"[0-9]{2}[0-9,]*(?:\.[0-9]+)?k?|[0-9]k"
"""Tokens of a prompt behind "pp"; one digit there is pipeline parallelism."""
_REQUESTS = (
    r"\bc[ =:]*({n})\b|\bconcurren(?:cy|t)[ =:of]*({n})\b|\bx({n}) streams"
    r"|(?<![-0-9])({n})[- ]?(?:x )?(?:concurrent|users|streams|clients|parallel|simultaneous)|\b(?:bs|batch)[ =:]*({n})\b"
)
_PROMPT = r"\bpp[ =:]*({many})\b|\bprompts?(?: of)?[ =:~]*({n})\b|\b({n})[- ]tokens?\b|\b({n}) prompts?\b"


def _count(text: str, pattern: str) -> str:
    found = re.search(pattern.replace("{n}", _N).replace("{many}", _MANY), lowered(text))
    value = number(next(g for g in found.groups() if g), TOKENS) if found else None
    return str(int(value)) if value else ""


def _thousands(text: str) -> str:
    found = re.search(r"(?:prefill|ttft|first token)[^,;]*?\b(\d+)k\b", text.lower())
    return str(int(found.group(1)) * 1024) if found else ""


def _model(*texts: str) -> str:
    for text in texts:
        sized = _OTHER.search(lowered(text))
        found = known_model(text) or (sized.group(0) if sized else "")
        if found:
            return found
    raise Declined("model not named")


def known_model(text: str) -> str:
    """The full name of the model named in a text, or ''."""
    for pattern, name in _PATTERNS:
        found = pattern.search(lowered(text))
        if found:
            return re.sub(r"[\s_]", "-", found.expand(name)).strip("-")
    return ""


def _quant(model: str, texts: tuple[str, ...], assumed: list[str]) -> str:
    """The quantisation of the side's words, of a Hub id as published, of the other side, or the usual one."""
    if model == "DeepSeek-V4-Flash" and not re.search(r"q2|nvfp4|exl3", texts[0].lower()):
        return published_quant(model)
    own, shared, other = (quant_in(text) for text in texts)
    if own or shared:
        return own or shared
    hub = next((found.group(0) for text in texts if (found := _HUB.search(text))), "")
    if other and not (hub and _HUB.search(texts[0])):
        return other
    usual = next((quant for stem, quant in _SERVED.items() if stem in model.lower()), "") if not hub else ""
    assumed.append("quantisation not named: " + ("the usual one on Sparks" if usual else "as published"))
    return usual or published_quant(hub or model)


_KV_TYPE = r"(nvfp4|fp8|bf16|fp16|int8|q8_0|q8|q4_0|q4|8[- ]bit|4[- ]bit)(?:_e[45]m[23])?"
_KV = re.compile(
    rf"\b{_KV_TYPE}[- ]kv(?:[- _]cache)?\b|\bkv(?:[- _]cache)?(?:[- _]dtype)?(?: in| of)?[ =:-]*{_KV_TYPE}\b"
)
_KV_BITS = {"8-bit": "fp8", "8 bit": "fp8", "4-bit": "fp4", "4 bit": "fp4"}


def _kv(text: str) -> str:
    """Type of the KV cache named in a text ("fp8_e4m3 KV", "--kv-cache-dtype fp8", "KV in 8 bit"), or ''."""
    found = _KV.search(lowered(text))
    named = next(g for g in found.groups() if g) if found else ""
    return _KV_BITS.get(named, named)


def _kernel(quant: str, remarks: str) -> str:
    """Marlin, if the remarks name it for both sides or for this side's format ("fp8 uses marlin")."""
    words = r"(?: uses| on| by| with| via| through)? marlin\b"
    named = re.search(rf"\bboth{words}", lowered(remarks)) or (
        quant and re.search(rf"\b{re.escape(quant)}{words}", lowered(remarks))
    )
    return "marlin; " if named else ""


_TP = r"(?<![a-z])(?:tp|tensor[-_ ]parallel(?:ism)?(?:[-_ ]size)?)(?: of)?[-_ =:]*([0-9]+)"
_PP = r"(?<![a-z])(?:pp|pipeline[-_ ]parallel(?:ism)?(?:[-_ ]size)?)(?: of)?[-_ =:]*([0-9])\b"
_SPARKS = r"\b([0-9]+)[ -]?x?[ -]?(?:dgx[ -])?(?:sparks?|nodes?|gb10s?|boxes)\b|(?<![0-9.])\b([0-9]+)x "
_IN_WORDS = (("single", "1"), ("one", "1"), ("two", "2"), ("dual", "2"), ("three", "3"), ("four", "4"))


def _topology(own: str, other: str, shared: str) -> dict[str, str]:
    """Nodes and parallelism. A side without any is like the other if it contains "same"."""
    text = lowered(own)
    for word, digit in _IN_WORDS:
        text = re.sub(rf"\b{word}(?=[- ](?:dgx|sparks?|nodes?|replicas?|independent))", digit, text)
    replicas = re.search(
        r"([0-9])x tp ?=? ?1\b|([0-9])x? (?:independent )?(?:tp ?=? ?1 )?replicas|replicas", text
    )
    if replicas:
        nodes = replicas.group(1) or replicas.group(2) or _first(text, _SPARKS) or "2"
        return {"nodes": nodes, "tp": "1", "link": "none (independent replicas)"}
    given_tp, given_pp, sparks = _first(text, _TP), _first(text, _PP), _first(text, _SPARKS)
    if not (given_tp or given_pp or sparks):
        given_tp = _first(lowered(shared), _TP)
        if (
            not given_tp
            and re.search(r"\bsame\b", text)
            and not re.search(r"\b(?:same|replicas)\b", lowered(other))
        ):
            return _topology(other, "", shared)
    tp, pp = int(given_tp or 1), int(given_pp or 1)
    nodes = max(int(sparks or 1), tp * pp)
    if tp * pp == 1 and not given_tp and re.search(r"\bpp\b(?! ?[0-9])|\bpipeline[- ]parallel", text):
        pp = nodes
    if tp * pp == 1 and not given_tp:
        tp = nodes
    return {"nodes": str(nodes), "tp": str(tp), "pp": str(pp), "link": "qsfp200" if nodes > 1 else ""}


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return next((g for g in found.groups() if g), "") if found else ""


def _speculation(own: str, shared: str) -> dict[str, str]:
    for text in (own, shared):
        found = method_in(text)
        if found is not None:
            return {"spec_method": found[0], "spec_tokens": str(found[1] or "")}
    return {"spec_method": "none"}
