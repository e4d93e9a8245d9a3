"""Reads a row of measurements: the quantised model, the engine, and its spread over nodes."""

from __future__ import annotations

import re
from typing import NamedTuple

from sparkfleet.accuracy import notes as note_reader
from sparkfleet.accuracy.aliases import (
    BLANK,
    engine_in,
    folded,
    format_of,
    is_off,
    lowered,
    method_in,
    published_quant,
    quant_label,
    unmeasured_engine,
)
from sparkfleet.accuracy.cells import CsvRow, amount, count
from sparkfleet.accuracy.models import Configs, Declined, Size, Stored, find_shape
from sparkfleet.knowledge.ceilings import LinkSpeed, physics
from sparkfleet.knowledge.engines.images import IMAGES, RequantizedBits
from sparkfleet.knowledge.models.known_models import quant_in_name
from sparkfleet.knowledge.models.speculators import sized_draft
from sparkfleet.knowledge.published.factors import PATCHED_BUILDS
from sparkfleet.perf.latency.rates import MAX_RUNNING
from sparkfleet.perf.latency.step_costs import SpeedConfig, own_chunk
from sparkfleet.perf.memory.demand import max_num_seqs
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.model_shape import ModelShape
from sparkfleet.perf.workload import Workload
from sparkfleet.units import GB

OWN_SHARE = 0.9
"""Of the memory, as vLLM takes it by itself; 0.92 in 0.32 (config/cache.py)."""


class ServedModel(NamedTuple):
    """Model and engine that were measured."""

    engine: str
    format: str
    """Key of `formats` in physics.yaml."""
    shape: ModelShape


class Ran(NamedTuple):
    """Configuration that was measured."""

    setup: SpeedConfig
    nodes: int
    replicas: int


def model_of(row: CsvRow, configs: Configs, assumed: list[str]) -> ServedModel:
    """The model of a row. Raises Declined if the row has too little; assumptions are added to `assumed`."""
    engine = _engine(row, assumed)
    format_name, scale = _format(row, engine, assumed)
    size = Size(
        amount(row, "params_total_b"),
        amount(row, "params_active_b"),
        row.get("architecture_notes", "").lower(),
    )
    shape = find_shape(row["model"], configs, Stored(format_name, scale, _total_bytes(row)), size)
    if shape.basis != "config.json":
        assumed.append(f"shapes not known: guessed from its size ({'experts' if shape.moe else 'dense'})")
    elif shape.name != row["model"]:
        assumed.append(f"shapes not known: those of {shape.name}, by its size")
    return ServedModel(engine, format_name, shape)


def setup_of(row: CsvRow, model: ServedModel, workload: Workload, assumed: list[str], *, eager: bool) -> Ran:
    """Engine configuration of a row. Raises and adds as `model_of`."""
    notes = row.get("notes", "").lower()
    nodes, tp, pp, replicas = _topology(row, notes, assumed)
    method, k = _speculation(row, assumed)
    setup = SpeedConfig(
        shape=model.shape.requantized(dict(_requantized(row, model.format))),
        engine=model.engine,
        format=model.format,
        tp=tp,
        pp=pp,
        ep=_experts_parallel(row, nodes),
        dcp=_shared_context(row, notes, tp),
        link=_link(row, notes, tp * pp, assumed),
        kv_bytes=_kv_bytes(row, assumed),
        kernel=_kernel(row, notes, model.format),
        eager=eager,
        release=_release(row),
        ray=tp * pp > 1
        and note_reader.has_trait("ray", f"{row.get('engine_version_or_image', '').lower()} {notes}"),
        chunk=note_reader.chunk(notes) or own_chunk(model.engine),
        method=method,
        k=k,
        draft_bytes=_draft_bytes(row["model"], method),
    )
    most = _running(row, setup, workload, assumed)
    return Ran(setup.model_copy(update={"max_running": most}), nodes, replicas)


def _draft_bytes(model: str, method: str) -> float | None:
    """Weights of the MTP drafter that is published apart from its target, bytes; rows do not name it."""
    draft = sized_draft(re.sub(r"\s+", "-", model.strip()), "mtp") if method == "mtp" else None
    return None if draft is None or draft.gb is None else draft.gb * GB


def _engine(row: CsvRow, assumed: list[str]) -> str:
    text = lowered(row.get("engine", ""))
    if text in BLANK:
        gguf = "gguf" in row["model"].lower() or re.match(
            r"gguf|(ud-)?i?q[0-9]", row.get("quant", "").lower()
        )
        engine = "llama.cpp" if gguf else "vllm"
        assumed.append(f"engine not given: {engine}{' (GGUF)' if gguf else ''}")
        return engine
    engine_named = engine_in(text)
    if engine_named is not None:
        return engine_named
    other = unmeasured_engine(text)
    if other is None:
        raise Declined(f"engine not known: {text[:40]}")
    assumed.append(f"no measurements of engine {other}: as vllm")
    return other


def _release(row: CsvRow) -> str:
    """Engine version in the words that factors know: `0.26`, or the name of a patched image."""
    text = row.get("engine_version_or_image", "").lower()
    for name in PATCHED_BUILDS:
        if name in text:
            return name
    text = text or row.get("engine", "").lower()
    found = re.search(r"(?:^|[^\d.])v?(0\.[0-9]+)(?:\.|$|[^\d])", text)
    return found.group(1) if found else ""


def _requantized(row: CsvRow, format_name: str) -> RequantizedBits:
    """Parts that the build stores in other bits than the checkpoint; a row names it with or without its tag."""
    text = row.get("engine_version_or_image", "").lower()
    named = (one for one in IMAGES.content.images if one.image.removesuffix(":latest") in text)
    return next((bits for one in named if (bits := one.requantized(format_name))), ())


def _format(row: CsvRow, engine: str, assumed: list[str]) -> tuple[str, float]:
    """Name of the format, and the bits of its linear layers relative to the format's own (EXL3 has them in its name)."""
    label = _label(row, assumed)
    name = format_of(label)
    if name is None:
        raise Declined(f"quantisation not known: {lowered(row.get('quant', ''))[:60]}")
    if engine in ("llama.cpp", "ollama") and (
        name == "mxfp4" or ("gpt-oss" in folded(row["model"]) and name != "bf16")
    ):
        name = "gguf-mxfp4"  # whatever the rest of it is in: see knowledge.models.published_ggufs.keeps_mxfp4
    bits = re.search(r"exl3[- ]?([0-9]+(?:\.[0-9]+)?)bpw", label)
    if bits and not 1 <= float(bits.group(1)) <= 8:
        raise Declined(f"quantisation not known: {label[:60]}")
    if name == "exl3" and not bits:
        assumed.append("bits of EXL3 not given: 4")
    return name, float(bits.group(1)) / 4 if bits else 1.0


def _label(row: CsvRow, assumed: list[str]) -> str:
    """The quantisation in the spelling of the table; "bf16" of some models means their makers' quantised weights."""
    label, model = quant_label(row.get("quant", "")), row["model"]
    if not label:
        raise Declined("quantisation not given")
    published = published_quant(model)
    if label == "as published":
        assumed.append(f"not quantised further: as published ({published})")
        return published
    if label == "bf16" and "ministral-3-" in folded(model):
        return published
    if label == "fp8" and published.startswith("fp8+") and quant_in_name(model) is None:
        return published  # the experts of what is called FP8 are in MXFP4 (its model card)
    if label == "w4a4":
        assumed.append("quantisation w4a4: nvfp4")
    return label


def _total_bytes(row: CsvRow) -> float | None:
    size = amount(row, "weights_gb")
    if size is not None and 0 < size < 0.05:
        raise Declined("weights_gb is not plausible: less than 0.05")
    return size * 1e9 if size else None


_KV = (
    ("bf16", 2.0),
    ("nvfp4", 0.5625),
    ("fp8", 1.0),
    ("fp4", 0.5625),
    ("q8", 1.06),
    ("q4", 0.5625),
    ("q5", 0.69),
    ("e4m3", 1.0),
    ("e5m2", 1.0),
    ("int8", 1.0),
    ("int4", 0.5625),
    ("f16", 2.0),
    ("fp16", 2.0),
    ("float16", 2.0),
)
"""Words for the type of the KV cache, and bytes of one element with its scales."""


def _kv_bytes(row: CsvRow, assumed: list[str]) -> float:
    label = (
        lowered(row.get("kv_dtype", ""))
        .replace("nv-fp4", "nvfp4")
        .replace("fp-8", "fp8")
        .replace("bf-16", "bf16")
    )
    for word, size in _KV:
        if word in label:
            return size
    if label != "auto":
        assumed.append(
            "kv_dtype not given: bf16" if label in BLANK else f"kv_dtype not known: {label[:40]}: bf16"
        )
    return 2.0


def _link(row: CsvRow, notes: str, ranks: int, assumed: list[str]) -> LinkSpeed | None:
    if ranks < 2:
        return None
    links, label = physics().links, lowered(row.get("link", ""))
    if note_reader.has_trait("tcp", notes) or re.search(r"\btcp\b", label):
        return links["tcp"]
    if re.search(r"\b1 ?gb(?:e|it)?\b", label) or note_reader.has_trait("1gbe", notes):
        return links["1gbe"]
    if re.search(r"\b(?:2\.5|5|10|25) ?gb?(?:e|it)?\b", label):
        raise Declined(f"link not known: {label[:40]}")
    if "switch" in label and "switchless" not in label:
        return links["switch"]
    if not re.search(
        r"ring|mesh|qsfp|roce|rdma|infiniband|connectx|cx-?7|dac|direct|fabric|200g|100g", label
    ):
        assumed.append(
            "link not given: qsfp200" if label in BLANK else f"link not known: {label[:40]}: qsfp200"
        )
    return links["ring"] if "ring" in label or "mesh" in label else links["qsfp200"]


def _topology(row: CsvRow, notes: str, assumed: list[str]) -> tuple[int, int, int, int]:
    """(nodes, TP, PP, replicas)."""
    nodes, tp, pp = (count(row, column, least=1) for column in ("nodes", "tp", "pp"))
    ranks = (tp or 1) * (pp or 1)
    if nodes is None:
        assumed.append("nodes not given: " + ("1" if ranks == 1 else "tp x pp"))
        nodes = ranks
    if ranks > nodes:
        raise Declined("tp x pp is more than nodes")  # a Spark has one GPU
    if "replica" in row.get("link", "").lower() or note_reader.has_trait("replicas", notes):
        return nodes, 1, 1, nodes
    if ranks == nodes:
        return nodes, tp or 1, pp or 1, 1
    if note_reader.has_trait("pipeline", notes) and nodes % (tp or 1) == 0:
        return nodes, tp or 1, nodes // (tp or 1), 1
    if tp is not None and ranks > 1:
        raise Declined("tp x pp is less than nodes")
    assumed.append("tp not given: nodes" if tp is None else "tp 1 on several nodes: nodes")
    return nodes, nodes, 1, 1


def _running(row: CsvRow, setup: SpeedConfig, workload: Workload, assumed: list[str]) -> int | None:
    """Most requests at once: as in the notes, and no more than vLLM's KV cache pool holds."""
    most = note_reader.slots(row.get("notes", "").lower())
    if setup.engine != "vllm":
        return most
    length = round(workload.depth + workload.prompt + workload.generate)
    run = MemoryConfig(context=length, **setup.shared())
    share = amount(row, "mem_util_flag")
    room = max_num_seqs(setup.shape, run, share or OWN_SHARE)
    if room is None or room >= min(most or MAX_RUNNING, workload.concurrency):
        return most
    if not share:
        assumed.append(f"mem_util_flag not given: {OWN_SHARE}")
    return room


def _shared_context(row: CsvRow, notes: str, tp: int) -> int:
    dcp = note_reader.shared_context(f"{row.get('engine_version_or_image', '').lower()} {notes}")
    if tp % dcp:
        raise Declined("DCP does not divide tp")
    return dcp


def _experts_parallel(row: CsvRow, nodes: int) -> int:
    text = lowered(row.get("ep", ""))
    if text in ("true", "yes", "on", "enabled"):
        return nodes
    return 1 if text in ("false", "no", "off", "0") else count(row, "ep", least=1) or 1


def _kernel(row: CsvRow, notes: str, format_name: str) -> str:
    """Marlin if the notes name it, and on vLLM's CUDA 12.9 images, which have no FP8 or FP4 kernel for SM121."""
    without = "cu129" in row.get("engine_version_or_image", "").lower()
    blocks = format_name.startswith("nvfp4") or (format_name == "fp8" and _qwen_blocks(row["model"]))
    return "marlin" if note_reader.has_trait("marlin", notes) or (without and blocks) else ""


def _qwen_blocks(model: str) -> bool:
    """True for block-wise FP8, which Qwen publishes since Qwen3; others' FP8 is mostly per tensor or channel."""
    return bool(re.match(r"(?:qwen[/_-])?qwen-?3", folded(model)))


def _speculation(row: CsvRow, assumed: list[str]) -> tuple[str, int]:
    text = row.get("spec_method", "")
    if is_off(text):
        if lowered(text) in BLANK - {"none"}:
            assumed.append("speculation not given: none")
        return "none", 0
    found = method_in(text)
    if found is None:
        raise Declined(f"method of speculation not known: {lowered(text)[:40]}")
    method, beside = found
    k = count(row, "spec_tokens") or beside or 0
    if beside and k != beside:
        assumed.append("draft tokens given twice: those of their column")
    if k < 1:
        k = {"mtp": 3, "ngram": 4, "eagle3": 3, "draft": 4}.get(method, 7)
        assumed.append(f"draft tokens not given: {k}")
    return method, min(64, k)
