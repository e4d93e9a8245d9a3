"""Memory: every published "fits" and "does not fit" gets its verdict from the planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from planning_values import choice, model, sized

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.memory.demand import weight_bytes
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.model_shape import ModelShape, from_checkpoint
from sparkfleet.perf.prediction import Speculation, Split, Verdict
from sparkfleet.perf.predictor import Predictor
from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import Proposal, Sizes, VariantCase
from sparkfleet.planner.capacity.sizing import sized_at
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.specs.deployment import Deployment, EngineName
from sparkfleet.units import GIB

# (model, format, GB of weights as published, nodes, what is run, source)
FITS = [
    (
        "Qwen/Qwen3.6-27B-FP8",
        "fp8",
        29,
        1,
        MemoryConfig(engine="sglang", context=32768, concurrency=8, method="mtp", k=5),
        "field report 000",
    ),
    (
        "Qwen3.6-27B-NVFP4",
        "nvfp4",
        20.4,
        1,
        MemoryConfig(context=8192, concurrency=8, method="mtp", k=3),
        "field report 001",
    ),
    ("Qwen3.6-35B-A3B-FP8", "fp8", 35, 1, MemoryConfig(context=65536, concurrency=4), "field report 004"),
    (
        "Qwen3.6-35B-A3B",
        "prismaquant",
        22,
        1,
        MemoryConfig(context=32768, method="dflash", k=3),
        "field report 002",
    ),
    (
        "openai/gpt-oss-120b",
        "mxfp4",
        65,
        1,
        MemoryConfig(context=131072),
        "field report 004; recipe-registry",
    ),
    ("Qwen/Qwen3.5-122B-A10B", "nvfp4", 75, 1, MemoryConfig(context=32768), "field report 004"),
    ("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "int4", 67, 1, MemoryConfig(context=32768), "recipe-registry"),
    ("Qwen/Qwen3-Coder-Next", "fp8", 80, 1, MemoryConfig(context=32768), "recipe-registry"),
    (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "nvfp4",
        75,
        1,
        MemoryConfig(context=262144),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("poolside/Laguna-S-2.1-NVFP4", "nvfp4", 71, 1, MemoryConfig(context=32768), "recipe-registry"),
    ("zai-org/GLM-4.7-Flash", "fp8", 31, 1, MemoryConfig(context=32768), "recipe-registry"),
    (
        "Step-3.7-Flash",
        "q4_0",
        88.8,
        1,
        MemoryConfig(engine="llama.cpp", context=32768),
        "recipe-registry: IQ4_XS",
    ),
    ("Mistral-Medium-128B", "nvfp4", 89, 1, MemoryConfig(context=8192), "recipe-registry"),
    (
        "Qwen/Qwen3.8-Flash-Next",
        "q4_0",
        78,
        1,
        MemoryConfig(engine="llama.cpp", context=32768),
        "72.5 GiB used, recipe-registry",
    ),
    (
        "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
        "int4",
        123.8,
        2,
        MemoryConfig(tp=2, ep=2, context=32768, concurrency=4),
        "field report 003",
    ),
    ("Qwen/Qwen3.5-122B-A10B", "fp8", 125, 2, MemoryConfig(tp=2, context=131072), "recipe-registry"),
    ("MiniMax-M2.7", "mxfp4", 115, 2, MemoryConfig(tp=2, context=32768), "field report 001"),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        167,
        2,
        MemoryConfig(tp=2, context=131072),
        "recipe-registry",
    ),
    (
        "XiaomiMiMo/MiMo-V2.5",
        "nvfp4",
        170.9,
        2,
        MemoryConfig(tp=2, context=131072),
        "recipe-registry: 86 GiB/node",
    ),
    (
        "stepfun-ai/Step-3.7-Flash-NVFP4",
        "nvfp4",
        129,
        2,
        MemoryConfig(tp=2, context=262144),
        "Weschera/spark-bench",
    ),
    ("Hy3-295B", "nvfp4", 181, 2, MemoryConfig(tp=2, context=8192), "recipe-registry"),
    (
        "thinkingmachines/Inkling-Small-NVFP4",
        "nvfp4",
        171,
        2,
        MemoryConfig(tp=2, context=8192),
        "recipe-registry",
    ),
    (
        "Intel/Qwen3.5-397B-A17B-int4-AutoRound",
        "int4",
        199,
        3,
        MemoryConfig(pp=3, context=32768),
        "spark-arena three-node mesh",
    ),
    (
        "lukealonso/MiniMax-M3-NVFP4",
        "nvfp4",
        243,
        3,
        MemoryConfig(tp=3, context=32768),
        "tonyd2wild/Minimax-M3-NVFP-3x",
    ),
    ("MiniMaxAI/MiniMax-M2.5", "fp8", 229, 4, MemoryConfig(tp=4, context=131072), "recipe-registry"),
    ("zai-org/GLM-5.3-Flash", "fp8", 325, 4, MemoryConfig(tp=4, context=131072), "recipe-registry"),
    (
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "fp8+mxfp4",
        307,
        4,
        MemoryConfig(tp=4, context=131072),
        "Engram on disk: tonyd2wild, 81.6 GiB/rank",
    ),
    (
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "fp8+mxfp4",
        510,
        8,
        MemoryConfig(tp=8, context=131072),
        "Engram in RAM: rhys101",
    ),
    ("nvidia/Kimi-K2.6-NVFP4", "nvfp4", 595, 8, MemoryConfig(tp=8, context=32768), "recipe-registry"),
    (
        "Qwen3.6-27B",
        "nvfp4",
        20.4,
        1,
        MemoryConfig(kv_pool=66.56 * GIB, method="mtp", k=2),
        "r0b0tlab: a pool of 66.56 GiB",
    ),
    ("Qwen3.8-27B", "nvfp4", 20.4, 1, MemoryConfig(kv_pool=66.74 * GIB), "jschmied: a pool of 66.74 GiB"),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        167,
        2,
        MemoryConfig(tp=2, kv_pool=10e9),
        "pulsar, MiaAI: 10 GB",
    ),
    (
        "zai-org/GLM-5.3-Flash",
        "nvfp4",
        194,
        4,
        MemoryConfig(tp=4, kv_pool=24 * GIB),
        "othexmr RiNGSiDE: 24 GiB on each of four",
    ),
]
# Served, or failed, by a margin that no model of memory tells: the words of each row say which.
TIGHT = [
    (
        "Qwen/Qwen3.5-397B-A17B-FP8",
        "fp8",
        397,
        4,
        MemoryConfig(tp=4, context=32768),
        "recipe-registry: served, 99 GB a node",
    ),
    (
        "QuantTrio/GLM-5.2-Int4-Int8Mix",
        "int4-int8",
        405,
        4,
        MemoryConfig(tp=4, context=32768),
        "tonyd2wild/GLM-5.2-QuantTrio: served",
    ),
    (
        "QuantTrio/GLM-5.2-Int4-Int8Mix",
        "int4-int8",
        405,
        4,
        MemoryConfig(tp=4, kv_pool=10.95e9, method="mtp", k=4, chunk=8192),
        "FHNW, tonyd2wild: utilisation 0.91 and a pin serves, 0.90 does not",
    ),
    (
        "zai-org/GLM-5.2",
        "nvfp4",
        429,
        4,
        MemoryConfig(tp=4),
        "CosmicRaisins: 107 GB a node, served at the edge",
    ),
    (
        "zai-org/GLM-5.3",
        "nvfp4",
        421,
        4,
        MemoryConfig(tp=4, context=262144, kv_bytes=0.5625, method="mtp", k=3),
        "knapcio: served; 421 GB estimated, MTP layer apart",
    ),
    (
        "zai-org/GLM-5.3",
        "nvfp4",
        421,
        4,
        MemoryConfig(tp=4, kv_pool=6_318_718_976, method="mtp", k=3, chunk=4096),
        "knapcio: served; another 2046 MiB of the pool are the display's, which MemTotal does not have",
    ),
    (
        "Qwen3.8-27B",
        "nvfp4",
        20.4,
        1,
        MemoryConfig(kv_pool=75 * GIB),
        "jschmied: global out of memory with a pin of 75 GiB, none with 66.74",
    ),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        167,
        2,
        MemoryConfig(tp=2, kv_pool=27.5e9),
        "pulsar, MiaAI: a pin of 25.6 GiB kills the second node",
    ),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        167,
        2,
        MemoryConfig(tp=2, kv_pool=26.3 * GIB),
        "Reederey87: a pool of 26.3 GiB is served",
    ),
    (
        "poolside/Laguna-S-2.1-NVFP4",
        "nvfp4",
        71,
        1,
        MemoryConfig(kv_pool=32.44 * GIB),
        "MiaAI: served at 0.80",
    ),
    (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "nvfp4",
        75,
        1,
        MemoryConfig(kv_pool=32.26 * GIB),
        "pulsar: served; with a context of a million the host wedges (rule nemotron-super-1m-context)",
    ),
    (
        "lukealonso/MiniMax-M3-NVFP4",
        "nvfp4",
        243,
        3,
        MemoryConfig(tp=3, context=131072, method="eagle3", k=3),
        "tonyd2wild/Minimax-M3-NVFP-3x: 80 MB short at utilisation 0.82; four KV heads on three ranks",
    ),
    (
        "MiniMax-M3",
        "int4",
        227.2,
        2,
        MemoryConfig(tp=2, context=32768),
        "jvr0x: 105.8 GiB a node, one sequence only",
    ),
    (
        "LibertAIDAI/GLM-5.3-Flash-NVFP4",
        "nvfp4",
        194.7,
        2,
        MemoryConfig(tp=2, kv_pool=5.14 * GIB, method="dflash2", k=7),
        "sfxnz: 5.14 GiB dies, 4.14 runs",
    ),
    (
        "LibertAIDAI/GLM-5.3-Flash-NVFP4",
        "nvfp4",
        194.7,
        2,
        MemoryConfig(tp=2, kv_pool=4.14 * GIB, method="dflash2", k=7),
        "sfxnz: 5.14 GiB dies, 4.14 runs",
    ),
    (
        "nvidia/GLM-5.2-NVFP4",
        "nvfp4",
        450,
        4,
        MemoryConfig(tp=4, context=8192),
        "104.7 GiB resident, needs patches: spark-bench-reproducers",
    ),
    (
        "Nex-N2-Pro-IQ1_M",
        "iq1",
        91,
        1,
        MemoryConfig(engine="llama.cpp", context=262144, concurrency=2, kv_bytes=2.0),
        "jvr0x: tightest fit on the box",
    ),
    (
        "unsloth/MiniMax-M2.7-GGUF",
        "q4_k",
        108,
        1,
        MemoryConfig(engine="llama.cpp", context=32768, kv_bytes=1.06),
        "flowtivity: runs on one",
    ),
    (
        "Tengyunw/GLM-4.7-NVFP4",
        "nvfp4",
        200,
        2,
        MemoryConfig(tp=2, context=159440, eager=True),
        "heitor-mocelin/dgx-spark-research, 2xAsusGx10: 159,440-token pool, --enforce-eager",
    ),
    (
        "Intel/Qwen3.5-397B-A17B-int4-AutoRound",
        "int4",
        211,
        2,
        MemoryConfig(tp=2, context=32768),
        "recipe-registry: utilisation 0.90",
    ),
]
DOES_NOT_FIT = [
    (
        "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
        "int4",
        123.8,
        1,
        MemoryConfig(),
        "field report 003: 57.64 GiB on each of two",
    ),
    ("Qwen/Qwen3.5-122B-A10B", "bf16", 234, 1, MemoryConfig(), "field report 004"),
    (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "bf16",
        247,
        1,
        MemoryConfig(),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("poolside/Laguna-S-2.1", "bf16", 235, 1, MemoryConfig(), "luisefigueroa/pulsar MODELS.md"),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        166.4,
        1,
        MemoryConfig(),
        "luisefigueroa/pulsar MODELS.md: 155 GiB",
    ),
    ("zai-org/GLM-5.3-Flash", "nvfp4", 165.4, 1, MemoryConfig(), "luisefigueroa/pulsar MODELS.md: 154 GiB"),
    (
        "Qwen/Qwen3.8-Flash-Next-FP8",
        "fp8",
        185.5,
        1,
        MemoryConfig(),
        "luisefigueroa/pulsar MODELS.md: 172.8 GiB",
    ),
    (
        "RadixArk/Qwen3.8-Flash-Next-NVFP4",
        "nvfp4",
        135.2,
        1,
        MemoryConfig(),
        "vllm#56824: needs its n-gram table on disk",
    ),
    (
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
        "nvfp4",
        352,
        2,
        MemoryConfig(tp=2),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("XiaomiMiMo/MiMo-V2.5", "fp8", 315, 2, MemoryConfig(tp=2), "luisefigueroa/pulsar MODELS.md"),
    ("lukealonso/MiniMax-M3-NVFP4", "nvfp4", 250, 2, MemoryConfig(tp=2), "luisefigueroa/pulsar MODELS.md"),
    (
        "deepseek-ai/DeepSeek-V4-Pro",
        "fp8+mxfp4",
        865,
        2,
        MemoryConfig(tp=2),
        "luisefigueroa/pulsar MODELS.md",
    ),
    ("moonshotai/Kimi-K3", "mxfp4", 1561, 8, MemoryConfig(tp=8), "luisefigueroa/pulsar MODELS.md"),
    ("zai-org/GLM-5.2", "bf16", 1507, 8, MemoryConfig(tp=8), "luisefigueroa/pulsar MODELS.md"),
    ("Solar-Open-500B", "bf16", 501, 2, MemoryConfig(tp=2), "luisefigueroa/pulsar MODELS.md"),
    ("nvidia/GLM-4.7-NVFP4", "nvfp4", 230, 2, MemoryConfig(tp=2), "heitor-mocelin: 230 GB on two"),
    (
        "MiniMax-M2.7",
        "mxfp4",
        115,
        2,
        MemoryConfig(tp=2, context=100_000, concurrency=10, kv_bytes=2.0),
        "field report 001: out of memory",
    ),
    (
        "MiniMax-M2.7",
        "mxfp4",
        115,
        2,
        MemoryConfig(tp=2, context=65536 + 2048, concurrency=10, kv_bytes=2.0),
        "field report 001: out of memory at a depth of 65K; KV in bf16, as none says otherwise",
    ),
    (
        "deepseek-ai/DeepSeek-V4-Flash",
        "fp8+mxfp4",
        167,
        2,
        MemoryConfig(tp=2, context=1 << 20, concurrency=6),
        "the densest pool of two nodes holds 3.03M tokens in 19.85 GiB",
    ),
    (
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "fp8+mxfp4",
        510,
        4,
        MemoryConfig(tp=4),
        "tonyd2wild: Engram in RAM on four",
    ),
    ("meta-llama/Llama-3.1-405B", "bf16", 810, 4, MemoryConfig(tp=4), "202 GB a node"),
]
BY_NAME = (
    "nvidia/GLM-4.7-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
    "XiaomiMiMo/MiMo-V2.5",
    "lukealonso/MiniMax-M3-NVFP4",
    "deepseek-ai/DeepSeek-V4-Pro",
    "Qwen/Qwen3.5-122B-A10B",
    "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
    "poolside/Laguna-S-2.1",
)
"""Those that were refused as they are, and whose size a plan knows by their name."""


KV_DTYPES = {0.5625: "nvfp4", 1.0: "fp8", 1.06: "fp8", 2.0: "bf16"}
"""KV caches by bytes per element as the planner names them; llama.cpp's q8_0 is counted as FP8."""


def planned(sparks: Callable[..., Fleet], shape: ModelShape, run: MemoryConfig, *, edge: bool) -> Verdict:
    """The verdict of the planner's own path on a run of a model, on idle Sparks with nothing else on them."""
    pool_args = [] if run.kv_pool is None else [f"--kv-cache-memory-bytes={round(run.kv_pool)}"]
    spec = Deployment.model_validate({"name": "m", "model": "a/b", "engine_args": pool_args}, strict=False)
    checkpoint = known_checkpoint("Qwen/Qwen3-30B-A3B")
    assert checkpoint is not None
    predictor = Predictor(checkpoint)
    predictor.shape = shape  # sizes as published, not as that checkpoint's
    fleet = sparks(run.tp * run.pp, switch=True)
    (pool,) = fleet.pools(run.tp * run.pp)
    case = VariantCase(spec, spec.resolved()[0], predictor, fleet, edge=edge)
    speculation = Speculation.model_validate({"method": run.method, "tokens": run.k}, strict=False)
    proposal = Proposal(Split(run.tp, run.pp, run.ep), pool, cast("EngineName", run.engine), speculation)
    settings = EngineSettings(
        engine=run.engine,
        release="",
        speculation=speculation,
        eager=run.eager,
        kv_dtype=KV_DTYPES[run.kv_bytes],
        batch_tokens=run.chunk,
        link=pool.site.link,
    )
    room = MemoryLedger(fleet).best(pool)
    return sized_at(case, proposal, room, settings, Sizes(run.context, run.concurrency)).verdict


def test_the_page_counts_the_published_setups_and_those_at_the_edge(sparks) -> None:  # type: ignore[no-untyped-def]
    page = " ".join((Path(__file__).parents[3] / "docs" / "planner.md").read_text().split())
    setups = len(FITS) + len(TIGHT) + len(DOES_NOT_FIT)
    edge = sum(planned(sparks, model(*one[:3]), one[4], edge=False) == "no" for one in TIGHT)
    assert (
        f"{('five', 'six', 'seven')[edge - 5].capitalize()} of the {setups} published setups are served there"
        in page
    )
    assert f"with all {setups} published verdicts" in page


@pytest.mark.parametrize(("name", "format_", "gb", "nodes", "run", "source"), FITS)
def test_published_fits(
    sparks, name: str, format_: str, gb: float, nodes: int, run: MemoryConfig, source: str
) -> None:  # type: ignore[no-untyped-def]
    shape = model(name, format_, gb, active=13.0 if "Hy3" in name else None)
    assert run.tp * run.pp == nodes
    assert planned(sparks, shape, run, edge=False) == "fits", source


@pytest.mark.parametrize(("name", "format_", "gb", "nodes", "run", "source"), TIGHT)
def test_published_knife_edges_are_tight(  # type: ignore[no-untyped-def]
    sparks, name: str, format_: str, gb: float, nodes: int, run: MemoryConfig, source: str
) -> None:
    assert run.tp * run.pp == nodes
    shape = model(name, format_, gb)
    assert planned(sparks, shape, run, edge=False) in ("tight", "no"), source
    assert planned(sparks, shape, run, edge=True) == "tight", source


@pytest.mark.parametrize(("name", "format_", "gb", "nodes", "run", "source"), DOES_NOT_FIT)
def test_published_does_not_fit(  # type: ignore[no-untyped-def]
    sparks, name: str, format_: str, gb: float, nodes: int, run: MemoryConfig, source: str
) -> None:
    assert run.tp * run.pp == nodes
    assert planned(sparks, model(name, format_, gb), run, edge=True) == "no", source


@pytest.mark.parametrize(("name", "nodes"), [(one[0], one[3]) for one in DOES_NOT_FIT if one[0] in BY_NAME])
def test_what_was_published_as_too_large_is_refused_by_its_name(  # type: ignore[no-untyped-def]
    plan, sparks, ask, name: str, nodes: int
) -> None:
    found = plan(sparks(nodes, switch=nodes > 2), ask(name))
    assert [one.name for one in found.refused] == ["m"]


def test_what_ran_at_the_edge_is_planned_with_the_engine_that_ran_it(plan, sparks, ask) -> None:  # type: ignore[no-untyped-def]
    """GLM-5.2 NVFP4 on four: published with vLLM; TensorRT-LLM 1.3.0rc13 has no kernel of its attention for SM121."""
    rung = choice(plan(sparks(4, switch=True), ask("nvidia/GLM-5.2-NVFP4")))
    assert (rung.candidate.engine, rung.prediction.verdict) == ("vllm", "tight")
    assert rung.published.same


def test_what_would_be_refused_is_planned_at_the_edge_of_the_memory_alone(plan, sparks, ask) -> None:  # type: ignore[no-untyped-def]
    """GLM-4.7 in 200 GB on two Sparks: published as served with --enforce-eager and a pool of 159,440 tokens."""
    spec = ask("Tengyunw/GLM-4.7-NVFP4", engine="vllm", context=159_440, concurrency=1)
    found = plan(sparks(2), spec)
    rung = choice(found)
    assert rung.prediction.verdict == "tight"
    assert any("at the edge of the memory" in note for note in rung.notes)
    assert any(
        "xid43-util" in note for note in rung.notes
    )  # a limit of 0.87 that one source names and others contradict
    assert rung.candidate.memory_fraction == 0.93
    small = ask("Qwen/Qwen3-0.6B", name="small")
    both = plan(sparks(2), spec, small)
    assert [one.name for one in both.deployments] == ["small"]  # as before: what fits comes first
    assert [one.name for one in both.refused] == ["m"]


def test_an_mtp_layer_that_does_not_draft_is_not_loaded(sparks) -> None:  # type: ignore[no-untyped-def]
    # 465 GB on disk, 104.7 GiB resident on each of four (FHNW): the rest of it is the MTP layer.
    known = known_checkpoint("nvidia/GLM-5.2-NVFP4")
    assert known is not None
    shape = sized(from_checkpoint(known), 465)
    assert weight_bytes(shape, MemoryConfig(tp=4)) == pytest.approx(104.7 * GIB, rel=0.02)
    assert planned(sparks, shape, MemoryConfig(tp=4), edge=True) == "tight"
