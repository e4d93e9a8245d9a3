"""Published head-to-heads: two configurations in words, and which one won. Does the planner choose the same?

Both sides are read from their words (and from the metric and the source, for what they share), never from their values.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from sparkfleet.bench.rows import Case, Configs, Declined, case_of
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
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{k: v or "" for k, v in row.items() if k} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: {error}") from error
    if rows and not {"metric", "config_A", "config_B", "value_A", "value_B"} <= rows[0].keys():
        raise SpecError(f"{path}: not a file of head-to-heads", do="Give columns metric, config_A, config_B, value_A, …")
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
    return Duel(id=row.get("id", ""), tag=words.tag, metric=metric, lower_wins="ttft" in metric,
                first=sides[0], second=sides[1], first_won=(first < second) if lower else (first > second))


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
    return "decode_tps_aggregate" if re.search(r"agg|throughput|served|total", words) else "decode_tps_per_request"


_MODELS = (
    r"qwen3\.\d-flash-next|flash-next", r"qwen3\.\d-\d+b(?:-a\d+b)?", r"qwen3-coder-next", r"qwen3-coder-30b(?:-a3b)?",
    r"qwen3-vl-\d+b", r"qwen3-next-80b", r"qwen3-\d+b(?:-a\d+b)?", r"gemma-?4-\d+b(?:-a\d+b)?", r"gpt-oss-\d+b",
    r"glm-5\.\d-flash", r"glm-5\.\d", r"glm-4\.7-flash", r"glm-4\.7", r"(?:deepseek-?|ds)v4\.1-flash|dsv4\.1",
    r"(?:deepseek-?|ds)v4-flash|deepseek-v4|dsv4|ds4", r"minimax-m\d(?:\.\d)?", r"nemotron-3-super\S*",
    r"nemotron-3\.5-lightning\S*", r"nemotron-3-nano\S*|nemotron-nano\S*", r"llama-3\.\d-\d+b", r"mimo-v2\.5",
    r"step-3\.\d", r"agents-a1", r"ornith-1\.\d-35b", r"laguna-s", r"ling-3\.0-flash", r"gemma4-26b", r"qwen-3\.6-27b",
    r"qwen-3\.\d-\d+b(?:-a\d+b)?", r"gemma-4-26b-a4b-it", r"qwen38-27b", r"muse-glimmer-30b",
)
_NAMES = {
    "flash-next": "Qwen/Qwen3.8-Flash-Next", "dsv4": "DeepSeek-V4-Flash", "ds4": "DeepSeek-V4-Flash",
    "deepseek-v4": "DeepSeek-V4-Flash", "dsv4-flash": "DeepSeek-V4-Flash", "dsv4.1-flash": "DeepSeek-V4.1-Flash",
    "dsv4.1": "DeepSeek-V4.1-Flash", "gemma4-26b": "gemma-4-26B-A4B", "qwen38-27b": "Qwen3.8-27B",
    "laguna-s": "Laguna-S-2.1", "ling-3.0-flash": "Ling-3.0-flash",
}
_SIZES = {"nemotron-3-nano": "30b-a3b", "nemotron-nano": "30b-a3b", "nemotron-3.5-lightning": "30b-a3b"}


def _model(*texts: str) -> str:
    for text in texts:
        for pattern in _MODELS:
            found = re.search(pattern, text.lower())
            if found:
                name = found.group(0)
                for stem, size in _SIZES.items():
                    if name.startswith(stem):
                        return f"{stem.replace('nemotron-nano', 'nemotron-3-nano')}-{size}"
                return _NAMES.get(name, name.replace("qwen-3", "qwen3"))
    raise Declined("model not named")


_QUANTS = (
    r"nvfp4", r"mxfp4", r"exl3[^,]*?([\d.]+) ?bpw", r"exl3", r"int4", r"gptq", r"awq", r"(?:ud[-_])?i?q\d(?:_\w+)*", r"fp8",
    r"bf16",
)


def _quant(model: str, *texts: str) -> str:
    if "deepseek-v4-flash" in model.lower() and "q2" not in texts[0].lower():
        return "fp8+mxfp4-experts"
    for text in texts:
        for pattern in _QUANTS:
            found = re.search(rf"\b(?:{pattern})\b|{pattern}", text.lower().replace("fp8 kv", "").replace("nvfp4 kv", ""))
            if found:
                bits = found.groups()
                return f"exl3-{bits[0]}bpw" if bits and bits[0] else found.group(0).replace("exl3", "exl3-4bpw")
    if "gpt-oss" in model:
        return "mxfp4"
    raise Declined("quantisation not named")


def _side(own: str, other: str, shared: str) -> dict[str, str]:
    """A row of the columns of benchmarks.csv for one side, from words."""
    text, lower = f"{own} {shared}", own.lower()
    model = _model(own, shared, other)
    quant = _quant(model, own, shared, other)
    row = {
        "id": "", "source_url_or_repo_path": shared, "model": model, "quant": quant, "engine": _engine(own, shared, quant),
        "concurrency": _first(text, r"\bc(\d+)\b|concurrency (\d+)|x(\d+) streams") or "1",
        "prompt_tokens": _first(text, r"\bpp(\d+)\b|prompt (\d+)|(\d+) tokens") or _thousands(text) or "",
        "depth": _first(text, r"\bd(\d{3,})\b"), "gen_tokens": _first(text, r"\btg(\d+)\b"),
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
        for word, engine in (("sglang", "sglang"), ("llama.cpp", "llama.cpp"), ("gguf", "llama.cpp"), ("vllm", "vllm"),
                             ("atlas", "atlas"), ("trt", "trtllm"), ("ollama", "ollama"), ("ds4", "ds4")):
            if word in text:
                return engine
    return "llama.cpp" if re.match(r"(ud-)?i?q\d", quant) else "vllm"


def _topology(own: str) -> dict[str, str]:
    text = own.lower()
    replicas = re.search(r"(\d)x tp=1|(\d) replicas|replicas", text)
    if replicas:
        return {"nodes": replicas.group(1) or replicas.group(2) or "2", "tp": "1", "link": "none (independent replicas)"}
    tp, pp = _first(text, r"tp ?=? ?(\d+)") or "1", _first(text, r"pp ?=? ?(\d)\b") or "1"
    sparks = _first(text, r"(\d+)x? sparks?\b|(\d+)x ") or str(int(tp) * int(pp))
    if tp == pp == "1" and int(sparks) > 1 and "tp" not in text:
        tp = sparks
    return {"nodes": str(max(int(sparks), int(tp) * int(pp))), "tp": tp, "pp": pp, "link": "qsfp200" if int(tp) > 1 else ""}


def _speculation(own: str, shared: str) -> dict[str, str]:
    for text in (own, shared):
        if re.search(r"no[ -]spec|without spec|spec off|plain greedy|no mtp|no draft|, no spec|baseline", text):
            return {"spec_method": "none"}
        found = re.search(r"(dflash2|dflash|dspark|nextn|mtp|eagle-?3|eagle|ngram)[^\d,]{0,12}(\d+)?", text)
        if found:
            k = _first(text, r"\bk ?= ?(\d+)|\bn(\d+)\b|n ?= ?(\d+)") or (found.group(2) or "")
            return {"spec_method": found.group(1).replace("eagle-3", "eagle3"), "spec_tokens": k}
    return {"spec_method": "none"}
