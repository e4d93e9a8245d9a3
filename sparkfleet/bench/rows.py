"""Published measurements as cases: a row of a CSV becomes a setup, a workload and what was measured, or a reason why not.

Only columns that say what was run are read for the setup and the workload. Measured columns (rates, times, memory,
acceptance) never are.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from sparkfleet.bench.shapes import Configs, Declined, find_arch
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.physics import LinkSpeed, physics
from sparkfleet.planning.arch import PartKind
from sparkfleet.planning.speed import CHUNK, Setup
from sparkfleet.planning.workload import Content, Window, Workload
from sparkfleet.values import Value

METRICS = ("decode_tps_per_request", "decode_tps_aggregate", "prefill_tps", "ttft_ms")
Row = Mapping[str, str]


class Case(Value):
    """One row: what was run and what was measured."""

    id: str
    source: str
    """Who measured: a repository or a site."""
    model: str
    quant: str
    nodes: int
    setup: Setup
    workload: Workload
    replicas: int = 1
    """Independent copies that share the concurrency."""
    per_request_prefill: bool = False
    """`prefill_tps` is prompt / TTFT of one request, not the engine's own rate for all of them together."""
    yielded: float | None = None
    """Tokens per speculative step as measured. Only fitting reads it; predictions never do."""
    assumed: tuple[str, ...] = ()
    """What the row does not say and was assumed."""
    measured: tuple[tuple[str, float], ...] = ()

    @property
    def speculative(self) -> bool:
        """A speculative method was on."""
        return self.setup.method != "none"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file with a header.

    Raises:
        SpecError: no such file, not UTF-8, or no `model` column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [{k: v or "" for k, v in row.items() if k is not None} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: {error}") from error
    if not rows or "model" not in rows[0]:
        raise SpecError(
            f"{path}: no rows with a `model` column", do="Give a CSV with the columns of the benchmarks."
        )
    return rows


def source_of(row: Row) -> str:
    """Who measured: `owner/repo` of a repository, the host of a page, or the text itself."""
    text = row.get("source_url_or_repo_path", "")
    found = re.match(r"(?:github:|https?://github\.com/)([^/:\s]+/[^/:\s]+)", text)
    if found:
        return found.group(1)
    found = re.match(r"https?://([^/\s]+)", text) or re.match(r"([^:(]+)", text)
    return found.group(1).strip() if found else text


def case_of(row: Row, configs: Configs) -> Case:
    """The case of a row.

    Raises:
        Declined: with the reason, when the row does not say enough.
    """
    notes = row.get("notes", "").lower()
    if notes.startswith("not_measured"):
        raise Declined("estimate, not a measurement")
    assumed: list[str] = []
    format_name, scale = _format(row)
    arch = find_arch(
        row["model"],
        configs,
        total_b=_number(row, "params_total_b"),
        active_b=_number(row, "params_active_b"),
        notes=row.get("architecture_notes", "").lower(),
    )
    if format_name == "nvfp4" and arch.moe:
        format_name = "nvfp4-experts"
    arch = arch.quantised(_bits(format_name, scale), _total_bytes(row))
    workload = _workload(row, notes, assumed)
    nodes = _whole(row, "nodes") or 1
    replicas = _replicas(row, notes, nodes)
    tp, pp = _split(row, nodes, replicas)
    method, k = _speculation(row, assumed)
    setup = Setup(
        arch=arch,
        engine=_engine(row, assumed),
        format=format_name,
        tp=tp,
        pp=pp,
        ep=_whole(row, "ep") or 1,
        link=_link(row, notes, tp * pp),
        kv_bytes=_kv_bytes(row),
        kernel=_kernel(row, notes, format_name),
        eager="eager" in notes.replace("non-eager", ""),
        release=_release(row),
        max_running=_slots(notes),
        chunk=_chunk(row, notes),
        method=method,
        k=k,
    )
    measured = tuple((m, value) for m in METRICS if (value := _number(row, m)) is not None and value > 0)
    return Case(
        id=row.get("id", ""),
        source=source_of(row),
        model=row["model"],
        quant=row.get("quant", ""),
        nodes=nodes,
        setup=setup,
        workload=workload,
        replicas=replicas,
        per_request_prefill=_by_ttft(row, notes, workload),
        yielded=_yielded(row, k),
        assumed=tuple(assumed),
        measured=measured,
    )


def _yielded(row: Row, k: int) -> float | None:
    """Tokens per step from an accepted length ("3.2-3.6 of 4") or a share of the drafts ("66.3%", "0.394")."""
    text = row.get("accept_len_or_rate", "").lower()
    if not _whole(row, "spec_tokens") or "up to" in text:
        return None
    shares, lengths = [], []
    for low, high, percent in re.findall(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?(%?)", text):
        value = (float(low) + float(high or low)) / 2
        if percent or value < 1:
            shares.append(value / 100 if percent else value)
        elif value <= k + 1:
            lengths.append(value + ("accepted" in text or "/draft" in text))
    if lengths:
        return lengths[0]
    return 1 + min(1.0, shares[0]) * k if shares else None


def _by_ttft(row: Row, notes: str, workload: Workload) -> bool:
    """Whether a prefill rate was computed from the TTFT: said, or one request without a harness that knows better."""
    better = row.get("engine", "") in ("llama.cpp", "ollama", "ds4") or "llama-benchy" in notes
    return "prompt/ttft" in notes or (workload.concurrency == 1 and not better)


def _window(notes: str) -> Window:
    if "batched-bench" in notes or "s_tg" in notes or "decode net of prefill" in notes:
        return "decode"
    if re.search(r"closed-loop|open-loop|bench_serve|bench serve", notes):
        return "closed"
    if re.search(r"served|incl\.? prefill|incl\.? ttft|wall", notes):
        return "served"
    return "burst" if "llama-benchy" in notes or "prefill overlap" in notes else "steady"


def _number(row: Row, column: str) -> float | None:
    try:
        value = float(row.get(column, "").replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < 1e12 else None  # not NaN either


def _whole(row: Row, column: str) -> int:
    return int(_number(row, column) or 0)


def _engine(row: Row, assumed: list[str]) -> str:
    engine = row.get("engine", "").strip().lower()
    engine = {"ollama/llama.cpp": "ollama", "sparkinfer/vllm": "vllm", "trt-llm": "trtllm"}.get(
        engine, engine
    )
    if engine:
        return engine
    if "gguf" in row["model"].lower() or re.match(r"(ud-)?i?q\d", row.get("quant", "").lower()):
        assumed.append("engine not given: llama.cpp (GGUF)")
        return "llama.cpp"
    assumed.append("engine not given: vllm")
    return "vllm"


def _release(row: Row) -> str:
    """Engine version in the words that factors know: `0.26`, or the name of a patched image."""
    text = row.get("engine_version_or_image", "").lower()
    for name in _STACKS:
        if name in text:
            return name
    found = re.search(r"(?:^|[^\d.])v?(0\.\d+)(?:\.|$|[^\d])", text)
    return found.group(1) if found else ""


_STACKS = ("anemll", "aeon", "atlas", "exl3", "scitrera", "eugr", "glm53", "mia", "qwen38", "step37", "ds4")

_FORMATS = (
    (r"^bf16|^fp16", "bf16"),
    (r"^fp8\+mxfp4|mxfp4-experts", "fp8+mxfp4"),
    (r"^fp8", "fp8"),
    (r"^nvfp4", "nvfp4"),
    (r"prismaquant", "prismaquant"),
    (r"^int4-int8|^int4\+", "int4-int8"),
    (r"^int4|^awq|^gptq|^w4a16", "int4"),
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
    (r"fp4", "nvfp4"),
    (r"^int8|^w8a8", "fp8"),
    (r"^w4|4[- ]?bit", "int4"),
    (r"nf3|3[- ]?bit", "q3_k"),
    (r"aqlm|2[- ]?bit", "q2_k"),
)


_PUBLISHED_FP8 = re.compile(r"Ministral-3-\d+B-(Instruct|Reasoning)-2512$")
"""Checkpoints that are published in FP8 under a name that does not say so (their model cards)."""


_PUBLISHED_FP4_EXPERTS = re.compile(r"deepseek-?v4")
"""Checkpoints whose "FP8" has experts in MXFP4 (their model cards)."""


def _format(row: Row) -> tuple[str, float]:
    """Name of the format, and how many bits its linear layers have relative to the format's own (EXL3 says)."""
    label = row.get("quant", "").strip().lower()
    if not label:
        raise Declined("quantisation not given")
    if label == "bf16" and _PUBLISHED_FP8.search(row["model"]):
        label = "fp8"
    if label == "fp8" and _PUBLISHED_FP4_EXPERTS.search(row["model"].lower()):
        label = "fp8+mxfp4"
    name = next((name for pattern, name in _FORMATS if re.search(pattern, label)), None)
    if name is None:
        raise Declined(f"quantisation not known: {label}")
    if name == "mxfp4" and "llama" in row.get("engine", ""):
        name = "gguf-mxfp4"
    bits = re.search(r"exl3-(\d+(?:\.\d+)?)bpw", label)
    return name, float(bits.group(1)) / 4 if bits else 1.0


def _bits(name: str, scale: float) -> dict[PartKind, float]:
    return {
        kind: bits * (scale if kind in ("experts", "mlp", "attention", "shared") else 1.0)
        for kind, bits in physics().formats[name].bits.items()
    }


def _total_bytes(row: Row) -> float | None:
    size = _number(row, "weights_gb")
    return size * 1e9 if size else None


def _kv_bytes(row: Row) -> float:
    label = row.get("kv_dtype", "").lower()
    for word, size in (("bf16", 2.0), ("fp8", 1.0), ("nvfp4", 0.5625), ("fp4", 0.5625), ("q8", 1.06)):
        if word in label:
            return size
    return 2.0


def _link(row: Row, notes: str, ranks: int) -> LinkSpeed | None:
    if ranks < 2:
        return None
    links, label = physics().links, row.get("link", "").lower()
    if "over tcp" in notes or "tcp socket" in notes:
        return links["tcp"]
    if "1gbe" in label or "1 gbe" in notes:
        return links["1gbe"]
    if "switch" in label and "switchless" not in label:
        return links["switch"]
    return links["ring"] if "ring" in label or "mesh" in label else links["qsfp200"]


def _replicas(row: Row, notes: str, nodes: int) -> int:
    if "replica" in row.get("link", "") or re.search(r"\b2x solo|replicas", notes):
        return nodes
    return 1


def _split(row: Row, nodes: int, replicas: int) -> tuple[int, int]:
    tp, pp = _whole(row, "tp") or 1, _whole(row, "pp") or 1
    if replicas > 1:
        return 1, 1
    if tp * pp < nodes and "pipeline parallel" in row.get("notes", ""):
        return tp, nodes // tp
    return (nodes, 1) if tp * pp < nodes else (tp, pp)


def _slots(notes: str) -> int | None:
    found = re.search(
        r"(?:max[-_ ]num[-_ ]seqs|max-running-requests|--parallel|server parallel)[ =]*(\d+)", notes
    )
    found = found or re.search(r"\b(\d+) (?:serving )?slots", notes) or re.search(r"\bseqs(\d+)\b", notes)
    return int(found.group(1)) if found else None


def _kernel(row: Row, notes: str, format_name: str) -> str:
    """Marlin where it is said, and on vLLM's CUDA 12.9 images, which have no FP8 or FP4 kernel for SM121."""
    blocks = format_name.startswith("nvfp4") or (format_name == "fp8" and row["model"].startswith("Qwen/"))
    without = "cu129" in row.get("engine_version_or_image", "") and blocks
    return "marlin" if "marlin" in notes or without else ""


def _chunk(row: Row, notes: str) -> int:
    found = re.search(r"(?:max-num-batched-tokens|prefill-chunk|mnbt|-ub)[ =]*(\d+)(k?)", notes)
    if found:
        return int(found.group(1)) * (1024 if found.group(2) else 1)
    return 2048 if row.get("engine", "") in ("llama.cpp", "ollama", "vllm", "") else CHUNK


_METHODS = {"nextn": "mtp", "eagle": "eagle3"}


def _speculation(row: Row, assumed: list[str]) -> tuple[str, int]:
    method = row.get("spec_method", "").strip().lower()
    if not method:
        assumed.append("speculation not given: none")
        method = "none"
    if method in ("none", "no", "off"):
        return "none", 0
    k = min(64, _whole(row, "spec_tokens"))
    method = _METHODS.get(method, method)
    if k < 1:
        k = {"mtp": 3, "ngram": 4, "eagle3": 3, "draft": 4}.get(method, 7)
        assumed.append(f"draft tokens not given: {k}")
    return method, k


_CONTENT: tuple[tuple[str, Content], ...] = (
    (r"mixed code", "mixed"),
    (r"json|schema", "json"),
    (
        r"structur|\bcount|numbered|high-acceptance|high acceptance|objective task|workload repeat"
        r"|workload tools|r0b0bench concurrency lane",
        "structured",
    ),
    (r"agentic|agent (?:turn|session|traffic)", "agent"),
    (r"prose reasoning|ifeval", "prose"),
    (r"math|gsm|reasoning", "math"),
    (r"\b(?:fr|de)\b|german|french", "prose"),  # drafters guess other languages no better than prose
    (r"\bcod(?:e|ing)|codegen|\bbst\b|hash-map|\blru|is_prime|humaneval|script", "code"),
    (r"mmlu|reason|eval\b", "math"),
    (r"prose|essay|story|narrative|explanation|summar|translat", "prose"),
    (r"synthetic|random", "random"),
    (r"llama-benchy|spark-arena", "book"),
)


def _content(notes: str) -> Content:
    for pattern, content in _CONTENT:
        if re.search(pattern, notes):
            return content
    return "mixed"


def _workload(row: Row, notes: str, assumed: list[str]) -> Workload:
    prompt, generate = _whole(row, "prompt_tokens"), _whole(row, "gen_tokens")
    depth, concurrency = _whole(row, "depth"), max(1, _whole(row, "concurrency"))
    if not _whole(row, "concurrency"):
        assumed.append("concurrency not given: 1")
    if not row.get("prompt_tokens", "").strip():
        found = re.search(r"prompt ~(\d+)", notes)
        prompt = int(found.group(1)) if found else 0
        if not prompt:
            assumed.append("prompt length not given")
    if not generate:
        generate = 256
        assumed.append("answer length not given: 256")
    rate = re.search(r"(?:rate=|rate sweep at )([\d.]+) rps", notes)
    total = re.search(r"completed=(\d+)", notes)
    cached = not (depth and "llama-benchy" in notes and "mesh" not in notes) and "enforce-eager" not in notes
    return Workload(
        prompt=prompt,
        depth=depth,
        depth_cached=cached,
        generate=generate,
        concurrency=concurrency,
        arrivals_per_s=float(rate.group(1)) if rate else None,
        requests=int(total.group(1))
        if total
        else max(100, round(250 * float(rate.group(1))))
        if rate
        else 100,
        content=_content(notes),
        window=_window(notes),
    )
