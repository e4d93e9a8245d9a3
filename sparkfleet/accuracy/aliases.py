"""Parses numbers, engines, formats and speculative methods as people write them: one table of aliases for each.

Pure, and never raises: text that cannot be read is None, and the caller declines it with a reason.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

LARGEST = 1e12
"""Larger than any figure of a benchmark."""

BLANK = frozenset(
    ("", "-", "--", "–", "—", "n/a", "na", "none", "null", "nan", "?", "unknown", "tbd", "unspecified")
)
"""Text of empty cells."""

_ABOUT = r"^(?:[~≈]|about |approx\.? |ca\.? )\s*"
_IN_WORDS = {"single": 1, "one": 1, "dual": 2, "two": 2, "three": 3, "four": 4, "six": 6, "eight": 8}
_NUMBER = re.compile(
    r"(?P<digits>[0-9]{1,3}(?:[,_' ][0-9]{3})+|[0-9]+)(?P<part>\.[0-9]+)?(?P<power>e[+-]?[0-9]{1,3})?(?P<unit>[a-z/% ]*)"
)

TOKENS: Mapping[str, float] = {"k": 1024, "m": 1024**2} | dict.fromkeys(("tok", "token", "tokens", "t"), 1.0)
"""Units of lengths: "2K" of a prompt is 2048."""


def lowered(text: str) -> str:
    """Lower case, one width of digits and letters, single blanks."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def folded(text: str) -> str:
    """Lower case with hyphens for blanks and underscores: the same for all spellings of a name."""
    return re.sub(r"[\s_-]+", "-", lowered(text)).strip("-")


def number(text: str, units: Mapping[str, float] | None = None, names: str = "") -> float | None:
    """A number as people write it: "1,024", "~2048", "2K", "two", "c8", "8x", "27B".

    Args:
        text: the number; a remark in parentheses behind it is left out.
        units: units that may follow → their factor.
        names: alternatives of a regular expression that may precede it ("c|concurrency").

    Returns:
        None if it is no single number: a range, a sign, another unit.
    """
    text = re.sub(r" ?\([^()]*\)$", "", lowered(text))
    text = re.sub(_ABOUT, "", text)
    if names:
        text = re.sub(rf"^(?:{names})(?: ?[=:] ?| |-(?=[0-9])|(?=[0-9~≈]))", "", text)
    text = re.sub(r"^\.(?=[0-9])", "0.", re.sub(_ABOUT, "", text))
    text = re.sub(rf"^({'|'.join(_IN_WORDS)})\b", lambda found: str(_IN_WORDS[found.group(1)]), text)
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    digits = re.sub(r"[,_' ]", "", found["digits"])
    value = float(digits + (found["part"] or "") + (found["power"] or ""))
    for unit in found["unit"].split():
        if unit not in (units or {}):
            return None
        value *= (units or {})[unit]
    return value if value < LARGEST else None


_ENGINES = (
    (r"sg-?lang|\bsgl\b", "sglang"),
    (r"ollama", "ollama"),
    (
        r"llama-?\.?c(?:pp|\+\+)|llama-(?:server|bench|cli)\b|\bggml\b|lm-?studio|llamafile|kobold|gguf",
        "llama.cpp",
    ),
    (r"v-?llm\b|vllm", "vllm"),
    (r"atlas", "atlas"),
    (r"tensor-?rt|trt", "trtllm"),
    (r"\bds4\b", "ds4"),
)
_UNMEASURED = (
    (r"lmdeploy|turbomind", "lmdeploy"),
    (r"\bmlc\b", "mlc"),
    (r"\btgi\b|text-generation-inference", "tgi"),
    (r"exllama|tabbyapi", "exllamav3"),
    (r"^custom$", "custom"),
)
"""Engines similar to vLLM without measurements: predicted as vLLM, and reported as assumed."""


def engine_in(text: str) -> str | None:
    """The engine named in a text, or None."""
    return _first(_ENGINES, folded(text))


def unmeasured_engine(text: str) -> str | None:
    """An engine without measurements that works as vLLM does, or None."""
    return _first(_UNMEASURED, folded(text))


def _first(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((name for pattern, name in table if re.search(pattern, text)), None)


_METHODS = (
    (r"dflash[- ]?2(?![0-9x]| ?x?[ -]?(?:spark|node))", "dflash2"),
    (r"dflash", "dflash"),
    (r"dspark", "dspark"),
    (r"next[- ]?n(?![a-z])|mtp", "mtp"),
    (r"(?<![a-z]-)eagle(?:[- ]?3)?(?![- ]?[0-9])", "eagle3"),
    (r"n[- ]?gram|prompt[- ]?look[- ]?up", "ngram"),
    (r"draft[- ](?:model|target)\b|^draft$|^standalone$", "draft"),
)
_NO_METHOD = re.compile(
    r"no[- _]?spec|without spec|spec(?:ulation)? (?:off|disabled)|plain greedy|baseline"
    r"|no[- _](?:mtp|draft|eagle|dflash|dspark)"
)
_OFF = BLANK | {
    "no",
    "off",
    "false",
    "0",
    "disabled",
    "without",
    "plain",
    "greedy",
    "vanilla",
    "autoregressive",
}
_COUNT = r"(?:k|n|b|num[ _]spec(?:ulative)?[ _]tokens|(?:spec(?:ulative)?|draft)[ _-]tokens)"
_COUNT_NEXT = re.compile(
    rf"[ -]?\(?(?:{_COUNT} ?[=:]? ?)?([0-9]{{1,2}})(?![0-9a-z.]| ?x?[ -]?(?:dgx|spark|node)| seqs)"
)
_COUNT_ANYWHERE = re.compile(rf"\b{_COUNT}(?: ?[=:] ?| (?=[0-9])|)([0-9]{{1,2}})\b")


def method_in(text: str) -> tuple[str, int | None] | None:
    """The speculative method named in a text, and its number of draft tokens ("MTP-3", "DFlash2 k=7", "mtp 3/1/4").

    Returns:
        ("none", None) if the text rules speculation out; None if it names no method, or several.
    """
    text = re.sub(r"\bd-(?=flash|spark\b)", "d", lowered(text).replace("_", " "))
    text = re.sub(
        r"\beagle ?[/(] ?(?=mtp|next-?n)", "", text
    )  # SGLang's name for the algorithm that runs such a head
    if _NO_METHOD.search(text):
        return "none", None
    found: dict[str, int] = {}
    rest = text
    for pattern, name in _METHODS:
        for match in reversed(list(re.finditer(pattern, rest))):
            found[name] = match.end()
            rest = rest[: match.start()] + "#" * (match.end() - match.start()) + rest[match.end() :]
    if len(found) != 1:
        return None
    ((name, end),) = found.items()
    k = _COUNT_ANYWHERE.search(rest) or _COUNT_NEXT.match(text, end)
    return name, int(k.group(1)) if k else None


def is_off(text: str) -> bool:
    """True if a cell for a method means that there is none."""
    text = lowered(text)
    return text in _OFF or bool(_NO_METHOD.search(text))


_SPELLINGS = (
    (r"\bnv[- _]?fp[- _]?4", "nvfp4"),
    (r"\bmx[- _]?fp[- _]?([48])", r"mxfp\1"),
    (r"\bbf(?:loat)?[- _]?16|\bf(?:loat|p)?[- _]?16\b|\b16[- _]?bit\b|^half\b", "bf16"),
    (r"\bfp[- _]?([48])", r"fp\1"),
    (r"\bint[- _]?([48])", r"int\1"),
    (r"\bauto[- _]?round", "autoround"),
    (r"\bw([0-9]+)[- _]?a([0-9]+)", r"w\1a\2"),
    (r"\b(ud|ad)[- _](?=i?q)", r"\1-"),
    (r"\bexl[- _]?3", "exl3"),
    (r"([0-9])[- _]bpw", r"\1bpw"),
    (r"^gguf[- _:]*(?=\S)|\.?gguf$", ""),
)

_FORMATS = (
    (r"^bf16", "bf16"),
    (r"^fp8\+mxfp4|mxfp4-experts", "fp8+mxfp4"),
    (r"^fp8(?!\+nvfp4)", "fp8"),
    (r"nvfp4", "nvfp4"),
    (r"prismaquant", "prismaquant"),
    (r"^int4-int8|\bint4\+", "int4-int8"),
    (r"^(?:gptq|awq|autoround)\b.*(?:int8|8[- ]?bit)", "fp8"),
    (r"^int4|^awq|^gptq|^w4a16|^autoround(?!.*(?:int8|8bit))", "int4"),
    (r"^exl3", "exl3"),
    (r"mxfp4", "mxfp4"),
    (r"q8", "q8_0"),
    (r"q6", "q6_k"),
    (r"^(ud-)?q5", "q5_k"),
    (r"^(ud-)?q4_0|iq4_nl", "q4_0"),
    (r"q4", "q4_k"),
    (r"q3", "q3_k"),
    (r"iq1", "iq1"),
    (r"q2", "q2_k"),
    (r"w4a4|fp4", "nvfp4"),
    (r"^int8|^w8a(8|16)|^mxfp8|e4m3|fp8|^8[- ]?bit", "fp8"),
    (r"^w4a|4[- ]?bit|int4", "int4"),
    (r"nf3|3[- ]?bit", "q3_k"),
    (r"aqlm|2[- ]?bit", "q2_k"),
)
_UNQUANTISED = frozenset(
    ("none", "unquantized", "unquantised", "full precision", "full-precision", "native", "original")
)


def quant_label(text: str) -> str:
    """A quantisation in the spelling of the table; "as published" if the text rules one out."""
    text = lowered(text)
    if text in _UNQUANTISED:
        return "as published"
    if text in BLANK:
        return ""
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    text = re.sub(r"\b(i?q[0-9])[- ](?=[0-9ksmlxn])", r"\1_", re.sub(r" ?\+ ?", "+", text))
    return text.strip(" -_")


def format_of(label: str) -> str | None:
    """Name of a format in `physics.yaml` for a label of `quant_label`, or None."""
    return _first(_FORMATS, label)


_PUBLISHED = (
    (r"gpt-oss", "mxfp4"),
    (r"deepseek-?v4\.1", "mxfp4-experts+mxfp8"),
    (r"deepseek-?v4", "fp8+mxfp4-experts"),
    (r"deepseek-?(v3|r1(?!.*(distill|[0-9]b)))", "fp8"),
    (r"kimi-k2-thinking|kimi-k(2\.[5-9]|3)", "int4"),
    (r"kimi-k2|minimax-m2|mimo-v2", "fp8"),
    (r"ministral-3-[0-9]+b-(instruct|reasoning)-2512", "fp8"),
)
_NAMED = re.compile(
    r"nvfp4|mxfp[48]|prismaquant|exl3[^,]*?[0-9.]+bpw|exl3|int4|int8|gptq|awq|autoround|w[0-9]a[0-9]+|fp8|bf16"
    r"|(?:ud-)?i?q[0-9](?:_\w+)*"
)


def published_quant(name: str) -> str:
    """Format in which a model's maker publishes the weights: bf16, but for a few quantised ones (their model cards)."""
    return _first(_PUBLISHED, folded(name)) or "bf16"


def quant_in(text: str) -> str:
    """The first quantisation of weights named in a text, or ''. The KV cache's does not count."""
    text = lowered(text)
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    text = re.sub(r"\b(?:nvfp4|fp8|fp4|bf16|q[48]_[01])[- ]kv\b", "", text)
    found = min(_NAMED.finditer(text), key=lambda match: _rank(match.group(0)), default=None)
    if found is None:
        return ""
    bits = re.search(r"exl3.*?([0-9.]+)bpw", found.group(0))
    return f"exl3-{bits.group(1)}bpw" if bits else found.group(0)


def _rank(quant: str) -> int:
    """Order of preference: the four bits of the weights before the eight or sixteen of the rest."""
    return next(
        (i for i, word in enumerate(("nvfp4", "mxfp4", "exl3", "int4", "gptq", "awq")) if word in quant), 6
    )
