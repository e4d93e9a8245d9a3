"""Published head-to-heads: two configurations in words, and which one won. Does the planner choose the same?

Both sides are read from their words (and from the metric and the source, for what they share), never from their values.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from sparkfleet.bench.rows import Case, case_of
from sparkfleet.bench.shapes import Configs, Declined
from sparkfleet.errors import SpecError
from sparkfleet.values import Value

CLEAR = 1.15
"""Ratios below this are noise: the same box differs by as much between two boots."""


class Duel(Value):
    """One head-to-head that can be predicted."""

    id: str
    tag: str
    metric: str
    """One of `rows.METRICS`."""
    lower_wins: bool
    first: Case
    second: Case
    first_won: bool


class Words(Value):
    """One head-to-head as published, and its tag."""

    tag: str
    row: Mapping[str, str]


def read_duels(path: Path) -> list[Words]:
    """Clear head-to-heads of a file with the columns of `head-to-heads.csv`.

    Raises:
        SpecError: no such file, or other columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [{k: v or "" for k, v in row.items() if k} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: {error}") from error
    if rows and not {"metric", "config_A", "config_B", "value_A", "value_B"} <= rows[0].keys():
        raise SpecError(
            f"{path}: not a file of head-to-heads", do="Give columns metric, config_A, config_B, value_A, …"
        )
    return [Words(tag=_tag(row), row=row) for row in rows if _clear(row)]


def duel_of(words: Words, configs: Configs) -> Duel:
    """What to predict for a head-to-head.

    Raises:
        Declined: with the reason, when the words do not say enough.
    """
    row = words.row
    metric = _metric(row["metric"])
    shared = f"{row['metric']} {row.get('source', '')}"
    sides = [case_of(_side(row[f"config_{x}"], row[f"config_{y}"], shared), configs) for x, y in ("AB", "BA")]
    lower = bool(re.search(r"ttft|tpot|\bms\b|latency", row["metric"].lower()))
    first, second = float(row["value_A"]), float(row["value_B"])
    return Duel(
        id=row.get("id", ""),
        tag=words.tag,
        metric=metric,
        lower_wins="ttft" in metric,
        first=sides[0],
        second=sides[1],
        first_won=(first < second) if lower else (first > second),
    )


def _tag(row: Mapping[str, str]) -> str:
    found = re.match(r"\[([\w-]+)\]", row.get("notes", ""))
    return found.group(1) if found else "other"


def _clear(row: Mapping[str, str]) -> bool:
    try:
        first, second = float(row["value_A"]), float(row["value_B"])
    except (KeyError, ValueError):
        return False
    return first > 0 and second > 0 and max(first, second) / min(first, second) > CLEAR


def _metric(words: str) -> str:
    words = words.lower()
    if re.search(r"pool|startup|memory|power|watt|\bgb\b|gib|score|accept|bandwidth|task|turns?\b", words):
        raise Declined("not a rate or a time to first token")
    if "ttft" in words:
        return "ttft_ms"
    if re.search(r"prefill|\bpp\d+ tok", words):
        return "prefill_tps"
    return (
        "decode_tps_aggregate"
        if re.search(r"agg|throughput|served|total", words)
        else "decode_tps_per_request"
    )


_MODELS = (
    r"qwen3\.\d-flash-next|flash-next",
    r"qwen-?3\.\d-\d+b(?:-a\d+b)?|qwen38-27b",
    r"qwen3-(?:coder-next|coder-30b(?:-a3b)?|vl-\d+b|next-80b|\d+b(?:-a\d+b)?)",
    r"gemma-?4-\d+b(?:-a\d+b)?",
    r"gpt-oss-\d+b",
    r"glm-5\.\d-flash|glm-4\.7-flash|glm-5\.\d|glm-4\.7",
    r"(?:deepseek-?|ds)v4\.1(?:-flash)?",
    r"(?:deepseek-?|ds)v?4(?:-flash)?",
    r"minimax[ -]m\d(?:\.\d)?",
    r"nemotron-3-super|nemotron-3\.5-lightning|nemotron-3-nano|nemotron-nano|nemotron-super",
    r"llama-3\.\d-\d+b",
    r"mimo-v2\.5|step-3\.\d(?:-flash)?|agents-a1|ornith-1\.\d-35b|laguna-s|ling-3\.0-flash|muse-glimmer-30b",
)
_NAMES = {
    "flash-next": "Qwen/Qwen3.8-Flash-Next",
    "qwen38-27b": "Qwen3.8-27B",
    "laguna-s": "Laguna-S-2.1",
    "nemotron-3-nano": "nemotron-3-nano-30b-a3b",
    "nemotron-nano": "nemotron-3-nano-30b-a3b",
    "nemotron-3.5-lightning": "nemotron-3.5-lightning-30b-a3b",
    "nemotron-super": "nemotron-3-super",
}


def _model(*texts: str) -> str:
    for text in texts:
        for pattern in _MODELS:
            found = re.search(pattern, text.lower())
            if found:
                return _named(found.group(0))
    raise Declined("model not named")


def _named(words: str) -> str:
    """The model's name in full."""
    if re.match(r"(?:deepseek-?|ds)v?4", words):
        return "DeepSeek-V4.1-Flash" if "4.1" in words else "DeepSeek-V4-Flash"
    plain = words.replace("minimax ", "minimax-").replace("qwen-3", "qwen3").replace("gemma4", "gemma-4")
    return _NAMES.get(plain, plain)


_QUANTS = (
    r"nvfp4",
    r"mxfp4",
    r"exl3[^,]*?([\d.]+) ?bpw",
    r"exl3",
    r"int4",
    r"gptq",
    r"awq",
    r"(?:ud[-_])?i?q\d(?:_\w+)*",
    r"fp8",
    r"bf16",
)


_PUBLISHED = {
    "gpt-oss": "mxfp4",
    "deepseek-v4.1": "mxfp4-experts+mxfp8",
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
"""How a model is served on Sparks where a head-to-head does not say and both sides are alike (medians of benchmarks.csv)."""


def _quant(model: str, *texts: str) -> str:
    if "deepseek-v4-flash" in model.lower() and not re.search(r"q2|nvfp4", texts[0].lower()):
        return "fp8+mxfp4-experts"
    for text in texts:
        for pattern in _QUANTS:
            found = re.search(
                rf"\b(?:{pattern})\b|{pattern}", text.lower().replace("fp8 kv", "").replace("nvfp4 kv", "")
            )
            if found:
                bits = found.groups()
                return (
                    f"exl3-{bits[0]}bpw" if bits and bits[0] else found.group(0).replace("exl3", "exl3-4bpw")
                )
    published = next((quant for stem, quant in _PUBLISHED.items() if stem in model.lower()), None)
    if published is None:
        raise Declined("quantisation not named")
    return published


def _side(own: str, other: str, shared: str) -> dict[str, str]:
    """A row of the columns of benchmarks.csv for one side, from words."""
    text, lower = f"{own} {shared}", own.lower()
    model = _model(own, shared, other)
    quant = _quant(model, own, shared, other)
    row = {
        "id": "",
        "source_url_or_repo_path": shared,
        "model": model,
        "quant": quant,
        "engine": _engine(own, shared, quant),
        "concurrency": _first(text, r"\bc(\d+)\b|concurrency (\d+)|x(\d+) streams") or "1",
        "prompt_tokens": _first(text, r"\bpp(\d+)\b|prompt (\d+)|(\d+) tokens") or _thousands(text) or "",
        "depth": _first(text, r"\bd(\d{3,})\b"),
        "gen_tokens": _first(text, r"\btg(\d+)\b"),
        "notes": f"{own}; {shared}; head-to-head",
    }
    return row | _topology(own) | _speculation(lower, shared.lower())


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text.lower())
    return next((g for g in found.groups() if g), "") if found else ""


def _thousands(text: str) -> str:
    found = re.search(r"(?:prefill|ttft)[^,;]*?\b(\d+)k\b", text.lower())
    return str(int(found.group(1)) * 1024) if found else ""


def _engine(own: str, shared: str, quant: str) -> str:
    for text in (own.lower(), shared.lower()):
        for word, engine in (
            ("sglang", "sglang"),
            ("llama.cpp", "llama.cpp"),
            ("gguf", "llama.cpp"),
            ("vllm", "vllm"),
            ("atlas", "atlas"),
            ("trt", "trtllm"),
            ("ollama", "ollama"),
            ("ds4", "ds4"),
        ):
            if word in text:
                return engine
    return "llama.cpp" if re.match(r"(ud-)?i?q\d", quant) else "vllm"


def _topology(own: str) -> dict[str, str]:
    text = own.lower()
    replicas = re.search(r"(\d)x tp=1|(\d) replicas|replicas", text)
    if replicas:
        return {
            "nodes": replicas.group(1) or replicas.group(2) or "2",
            "tp": "1",
            "link": "none (independent replicas)",
        }
    tp, pp = _first(text, r"tp ?=? ?(\d+)") or "1", _first(text, r"pp ?=? ?(\d)\b") or "1"
    sparks = _first(text, r"(\d+)x? sparks?\b|(\d+)x ") or str(int(tp) * int(pp))
    if tp == pp == "1" and int(sparks) > 1 and "tp" not in text:
        tp = sparks
    return {
        "nodes": str(max(int(sparks), int(tp) * int(pp))),
        "tp": tp,
        "pp": pp,
        "link": "qsfp200" if int(tp) > 1 else "",
    }


def _speculation(own: str, shared: str) -> dict[str, str]:
    for text in (own, shared):
        if re.search(
            r"no[ -]spec|without spec|spec off|plain greedy|no mtp|no draft|, no spec|baseline", text
        ):
            return {"spec_method": "none"}
        found = re.search(
            r"(dflash2|dflash|dspark|nextn|mtp|eagle-?3|eagle|ngram)(?:[ -]?(?:k ?= ?|n ?= ?|n)?(\d+)\b(?!x| spark))?",
            text,
        )
        if found:
            k = _first(text, r"\bk ?= ?(\d+)|\bn(\d+)\b|n ?= ?(\d+)") or (found.group(2) or "")
            return {"spec_method": found.group(1).replace("eagle-3", "eagle3"), "spec_tokens": k}
    return {"spec_method": "none"}
