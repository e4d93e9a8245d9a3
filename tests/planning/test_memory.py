"""Memory: every published "fits" and "does not fit" gets its verdict, and more of anything never helps where it must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.bench.shapes import find_arch, from_counts
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.physics import physics
from sparkfleet.planning.arch import Arch
from sparkfleet.planning.memory import (
    GIB,
    NodeMemory,
    Run,
    Verdict,
    demand,
    fit,
    kv_bytes,
    largest,
    state_bytes,
    weight_bytes,
)

SPARK = NodeMemory(total=121.6 * GIB)
SMALL_SPARK = NodeMemory(total=59.6 * GIB)


def model(
    name: str, format_: str, gb: float | None = None, total: float | None = None, active: float | None = None
) -> Arch:
    arch = find_arch(name, architectures(), total_b=total, active_b=active, notes="")
    sized = arch.quantised(physics().formats[format_].bits)
    scale = gb * 1e9 / sized.bytes if gb else 1.0
    parts = tuple(part.model_copy(update={"bits": part.bits * scale}) for part in sized.parts)
    return sized.model_copy(update={"parts": parts})


# (model, format, GB of weights as published, nodes, what is run, source)
FITS = [
    (
        "Qwen/Qwen3.6-27B-FP8",
        "fp8",
        29,
        1,
        Run(engine="sglang", context=32768, concurrency=8, method="mtp", k=5),
        "field report 000",
    ),
    (
        "Qwen3.6-27B-NVFP4",
        "nvfp4",
        20.4,
        1,
        Run(context=8192, concurrency=8, method="mtp", k=3),
        "field report 001",
    ),
    ("Qwen3.6-35B-A3B-FP8", "fp8", 35, 1, Run(context=65536, concurrency=4), "field report 004"),
    ("Qwen3.6-35B-A3B", "prismaquant", 22, 1, Run(context=32768, method="dflash", k=3), "field report 002"),
    ("openai/gpt-oss-120b", "mxfp4", 65, 1, Run(context=131072), "field report 004; recipe-registry"),
    ("Qwen/Qwen3.5-122B-A10B", "nvfp4", 75, 1, Run(context=32768), "field report 004"),
    ("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "int4", 67, 1, Run(context=32768), "recipe-registry"),
    ("Qwen/Qwen3-Coder-Next", "fp8", 80, 1, Run(context=32768), "recipe-registry"),
    (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "nvfp4",
        75,
        1,
        Run(context=262144),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("poolside/Laguna-S-2.1-NVFP4", "nvfp4", 71, 1, Run(context=32768), "recipe-registry"),
    ("zai-org/GLM-4.7-Flash", "fp8", 31, 1, Run(context=32768), "recipe-registry"),
    ("Step-3.7-Flash", "q4_0", 88.8, 1, Run(engine="llama.cpp", context=32768), "recipe-registry: IQ4_XS"),
    ("Mistral-Medium-128B", "nvfp4", 89, 1, Run(context=8192), "recipe-registry"),
    (
        "Qwen/Qwen3.8-Flash-Next",
        "q4_0",
        78,
        1,
        Run(engine="llama.cpp", context=32768),
        "72.5 GiB used, recipe-registry",
    ),
    (
        "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
        "int4",
        123.8,
        2,
        Run(tp=2, ep=2, context=32768, concurrency=4),
        "field report 003",
    ),
    ("Qwen/Qwen3.5-122B-A10B", "fp8", 125, 2, Run(tp=2, context=131072), "recipe-registry"),
    ("MiniMax-M2.7", "mxfp4", 115, 2, Run(tp=2, context=32768), "field report 001"),
    ("deepseek-ai/DeepSeek-V4-Flash", "fp8+mxfp4", 167, 2, Run(tp=2, context=131072), "recipe-registry"),
    ("XiaomiMiMo/MiMo-V2.5", "nvfp4", 170.9, 2, Run(tp=2, context=131072), "recipe-registry: 86 GiB/node"),
    ("stepfun-ai/Step-3.7-Flash-NVFP4", "nvfp4", 129, 2, Run(tp=2, context=262144), "Weschera/spark-bench"),
    ("Hy3-295B", "nvfp4", 181, 2, Run(tp=2, context=8192), "recipe-registry"),
    ("thinkingmachines/Inkling-Small-NVFP4", "nvfp4", 171, 2, Run(tp=2, context=8192), "recipe-registry"),
    (
        "Intel/Qwen3.5-397B-A17B-int4-AutoRound",
        "int4",
        199,
        3,
        Run(pp=3, context=32768),
        "spark-arena three-node mesh",
    ),
    (
        "lukealonso/MiniMax-M3-NVFP4",
        "nvfp4",
        243,
        3,
        Run(tp=3, context=32768),
        "tonyd2wild/Minimax-M3-NVFP-3x",
    ),
    ("Qwen/Qwen3.5-397B-A17B-FP8", "fp8", 397, 4, Run(tp=4, context=32768), "recipe-registry"),
    ("MiniMaxAI/MiniMax-M2.5", "fp8", 229, 4, Run(tp=4, context=131072), "recipe-registry"),
    ("zai-org/GLM-5.3-Flash", "fp8", 325, 4, Run(tp=4, context=131072), "recipe-registry"),
    (
        "QuantTrio/GLM-5.2-Int4-Int8Mix",
        "int4-int8",
        405,
        4,
        Run(tp=4, context=32768),
        "tonyd2wild/GLM-5.2-QuantTrio",
    ),
    (
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "fp8+mxfp4",
        307,
        4,
        Run(tp=4, context=131072),
        "Engram on disk: tonyd2wild, 81.6 GiB/rank",
    ),
    (
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "fp8+mxfp4",
        510,
        8,
        Run(tp=8, context=131072),
        "Engram in RAM: rhys101",
    ),
    ("nvidia/Kimi-K2.6-NVFP4", "nvfp4", 595, 8, Run(tp=8, context=32768), "recipe-registry"),
]
TIGHT = [
    (
        "LibertAIDAI/GLM-5.3-Flash-NVFP4",
        "nvfp4",
        194.7,
        2,
        Run(tp=2, kv_pool=5.14 * GIB, method="dflash2", k=7),
        "sfxnz: 5.14 GiB dies, 4.14 runs",
    ),
    (
        "LibertAIDAI/GLM-5.3-Flash-NVFP4",
        "nvfp4",
        194.7,
        2,
        Run(tp=2, kv_pool=4.14 * GIB, method="dflash2", k=7),
        "sfxnz: 5.14 GiB dies, 4.14 runs",
    ),
    (
        "nvidia/GLM-5.2-NVFP4",
        "nvfp4",
        450,
        4,
        Run(tp=4, context=8192),
        "104.7 GiB resident, needs patches: spark-bench-reproducers",
    ),
    (
        "Nex-N2-Pro-IQ1_M",
        "iq1",
        91,
        1,
        Run(engine="llama.cpp", context=262144, concurrency=2, kv_bytes=2.0),
        "jvr0x: tightest fit on the box",
    ),
    (
        "unsloth/MiniMax-M2.7-GGUF",
        "q4_k",
        108,
        1,
        Run(engine="llama.cpp", context=32768, kv_bytes=1.06),
        "flowtivity: runs on one",
    ),
    (
        "Tengyunw/GLM-4.7-NVFP4",
        "nvfp4",
        200,
        2,
        Run(tp=2, context=159440),
        "heitor-mocelin: 159,440-token pool",
    ),
    (
        "Intel/Qwen3.5-397B-A17B-int4-AutoRound",
        "int4",
        211,
        2,
        Run(tp=2, context=32768),
        "recipe-registry: utilisation 0.90",
    ),
]
DOES_NOT_FIT = [
    ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "int4", 123.8, 1, Run(), "field report 003: 57.64 GiB on each of two"),
    ("Qwen/Qwen3.5-122B-A10B", "bf16", 234, 1, Run(), "field report 004"),
    (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "bf16",
        247,
        1,
        Run(),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("poolside/Laguna-S-2.1", "bf16", 235, 1, Run(), "luisefigueroa/pulsar MODELS.md"),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        166.4,
        1,
        Run(),
        "luisefigueroa/pulsar MODELS.md: 155 GiB",
    ),
    ("zai-org/GLM-5.3-Flash", "nvfp4", 165.4, 1, Run(), "luisefigueroa/pulsar MODELS.md: 154 GiB"),
    ("Qwen/Qwen3.8-Flash-Next-FP8", "fp8", 185.5, 1, Run(), "luisefigueroa/pulsar MODELS.md: 172.8 GiB"),
    (
        "RadixArk/Qwen3.8-Flash-Next-NVFP4",
        "nvfp4",
        135.2,
        1,
        Run(),
        "vllm#56824: needs its n-gram table on disk",
    ),
    (
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
        "nvfp4",
        352,
        2,
        Run(tp=2),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("XiaomiMiMo/MiMo-V2.5", "fp8", 315, 2, Run(tp=2), "luisefigueroa/pulsar MODELS.md"),
    ("lukealonso/MiniMax-M3-NVFP4", "nvfp4", 250, 2, Run(tp=2), "luisefigueroa/pulsar MODELS.md"),
    ("deepseek-ai/DeepSeek-V4-Pro", "fp8+mxfp4", 865, 2, Run(tp=2), "luisefigueroa/pulsar MODELS.md"),
    ("moonshotai/Kimi-K3", "mxfp4", 1561, 8, Run(tp=8), "luisefigueroa/pulsar MODELS.md"),
    ("zai-org/GLM-5.2", "bf16", 1507, 8, Run(tp=8), "luisefigueroa/pulsar MODELS.md"),
    ("Solar-Open-500B", "bf16", 501, 2, Run(tp=2), "luisefigueroa/pulsar MODELS.md"),
    ("nvidia/GLM-4.7-NVFP4", "nvfp4", 230, 2, Run(tp=2), "heitor-mocelin: 230 GB on two"),
    (
        "MiniMax-M2.7",
        "mxfp4",
        115,
        2,
        Run(tp=2, context=100_000, concurrency=10, kv_bytes=2.0),
        "field report 001: out of memory",
    ),
    ("deepseek-ai/DeepSeek-V4.1-Flash", "fp8+mxfp4", 510, 4, Run(tp=4), "tonyd2wild: Engram in RAM on four"),
    ("meta-llama/Llama-3.1-405B", "bf16", 810, 4, Run(tp=4), "202 GB a node"),
]


@pytest.mark.parametrize(("name", "format_", "gb", "nodes", "run", "source"), FITS)
def test_published_fits(name: str, format_: str, gb: float, nodes: int, run: Run, source: str) -> None:
    arch = model(name, format_, gb, active=13.0 if "Hy3" in name else None)
    assert run.tp * run.pp == nodes
    assert fit(demand(arch, run), SPARK).verdict is not Verdict.DOES_NOT_FIT, source


@pytest.mark.parametrize(("name", "format_", "gb", "nodes", "run", "source"), TIGHT)
def test_published_knife_edges_are_tight(
    name: str, format_: str, gb: float, nodes: int, run: Run, source: str
) -> None:
    assert run.tp * run.pp == nodes
    assert fit(demand(model(name, format_, gb), run), SPARK).verdict is Verdict.TIGHT, source


@pytest.mark.parametrize(("name", "format_", "gb", "nodes", "run", "source"), DOES_NOT_FIT)
def test_published_does_not_fit(
    name: str, format_: str, gb: float, nodes: int, run: Run, source: str
) -> None:
    assert run.tp * run.pp == nodes
    assert fit(demand(model(name, format_, gb), run), SPARK).verdict is Verdict.DOES_NOT_FIT, source


@pytest.mark.parametrize(
    ("name", "kv", "tokens", "gib", "tolerance", "source"),
    [
        ("Qwen3.6-27B", 1.0, 1_114_865, 35.45, 0.05, "jschmied, FP8"),
        ("Qwen3.6-35B-A3B", 1.0, 609_637, 6.0, 0.05, "jschmied, FP8"),
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
            1.0,
            1_247_936,
            32.26,
            9.0,
            "pulsar: the pool holds states too",
        ),
    ],
)
def test_kv_pools_hold_what_was_published(
    name: str, kv: float, tokens: int, gib: float, tolerance: float, source: str
) -> None:
    needed = kv_bytes(model(name, "fp8"), Run(context=tokens, kv_bytes=kv)) / GIB
    assert needed <= gib * 1.05, source
    assert needed >= gib / (1 + tolerance), source


def test_weights_are_divided_and_small_parts_are_too() -> None:
    arch = model("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "int4", 123.8)
    assert weight_bytes(arch, Run(tp=2)) == pytest.approx(57.64 * GIB, rel=0.01)
    assert weight_bytes(arch, Run(pp=2)) < 0.55 * arch.bytes


def test_kv_heads_are_copied_beyond_their_number() -> None:
    arch = model("Qwen/Qwen3.6-35B-A3B", "fp8")  # two KV heads
    assert kv_bytes(arch, Run(tp=4)) == kv_bytes(arch, Run(tp=2)) == kv_bytes(arch, Run()) / 2
    latent = model("deepseek-ai/DeepSeek-V4-Flash", "fp8")
    assert kv_bytes(latent, Run(tp=4)) == kv_bytes(latent, Run())


def test_drafts_keep_states() -> None:
    arch = model("Qwen3.6-27B", "fp8")
    assert state_bytes(arch, Run(method="mtp", k=3)) == 4 * state_bytes(arch, Run())


def test_the_second_model_on_a_node_sees_the_first() -> None:
    arch = model("google/gemma-4-26B-A4B", "nvfp4", 16.5)
    first = 0.85 * SPARK.total  # vLLM at 0.85 holds that much: flowy0, four times NV_ERR_NO_MEMORY
    assert fit(demand(arch, Run()), SPARK).verdict is Verdict.FITS
    assert (
        fit(demand(arch, Run()), NodeMemory(total=SPARK.total, placed=first)).verdict is Verdict.DOES_NOT_FIT
    )


def test_half_a_spark_is_half_a_spark() -> None:
    arch = model("openai/gpt-oss-120b", "mxfp4", 65)
    assert fit(demand(arch, Run()), SMALL_SPARK).verdict is Verdict.DOES_NOT_FIT
    assert fit(demand(model("Qwen3.6-27B", "nvfp4"), Run()), SMALL_SPARK).verdict is Verdict.FITS


def test_the_embedded_engine_needs_little_more_than_its_process() -> None:
    tiny = from_counts("tiny", 0.001, 0.001)
    found = demand(tiny, Run(device="cpu", kv_pool=64 * 2**20)).band
    assert 1.0 * GIB < found.mid < 2.6 * GIB


def test_largest_is_the_edge() -> None:
    arch = model("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "int4", 123.8)
    run = Run(tp=2, concurrency=4)
    edge = largest(arch, run, SPARK, what="context")
    assert 32768 < edge < 1 << 21
    beyond = run.model_copy(update={"context": edge + 1024})
    assert (
        fit(demand(arch, run.model_copy(update={"context": edge})), SPARK).verdict is not Verdict.DOES_NOT_FIT
    )
    assert fit(demand(arch, beyond), SPARK).verdict is Verdict.DOES_NOT_FIT
    assert largest(arch, Run(), SPARK, what="concurrency") == 0


RANKS = {Verdict.FITS: 0, Verdict.TIGHT: 1, Verdict.DOES_NOT_FIT: 2}
NAMES = [
    "Qwen3.6-27B",
    "Qwen3.6-35B-A3B",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V4-Flash",
]
runs = st.builds(
    Run,
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    context=st.integers(256, 1_000_000),
    concurrency=st.integers(1, 64),
    method=st.sampled_from(["none", "mtp", "dflash", "ngram"]),
    k=st.integers(1, 8),
)


@given(st.sampled_from(NAMES), st.sampled_from(["fp8", "nvfp4"]), runs, st.floats(8, 130), st.floats(0, 60))
def test_more_memory_never_makes_a_fit_unfit(
    name: str, format_: str, run: Run, gib: float, more: float
) -> None:
    needs = demand(model(name, format_), run)
    less, better = (fit(needs, NodeMemory(total=x * GIB, used=4 * GIB)).verdict for x in (gib, gib + more))
    assert RANKS[better] <= RANKS[less]


@given(st.sampled_from(NAMES), runs, st.integers(1, 500_000), st.integers(0, 16))
def test_more_context_or_requests_never_need_less(name: str, run: Run, tokens: int, requests: int) -> None:
    arch = model(name, "fp8")
    more = run.model_copy(update={"context": run.context + tokens, "concurrency": run.concurrency + requests})
    a, b = demand(arch, run).band, demand(arch, more).band
    assert b.low >= a.low
    assert b.mid >= a.mid
    assert b.high >= a.high


@given(st.sampled_from(NAMES), runs)
def test_same_input_same_output(name: str, run: Run) -> None:
    assert demand(model(name, "fp8"), run) == demand(model(name, "fp8"), run)
