"""Head-to-heads are read from their words in any spelling; what the words leave open is declined or assumed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.accuracy.accuracy import compare_rows, predict
from sparkfleet.accuracy.accuracy_report import Wins
from sparkfleet.accuracy.duels import Duel, Words, duel_of, read_duels
from sparkfleet.accuracy.models import Declined
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors

HEADER = "id,source,metric,config_A,config_B,value_A,value_B,winner,ratio,notes\n"
ROWS = "model,quant,engine,decode_tps_per_request\nQwen/Qwen3.6-27B-FP8,fp8,vllm,8\n"


def duel(
    first: str, second: str, metric: str = "decode tok/s c1", source: str = "x", tag: str = "quant"
) -> Duel:
    row = {
        "metric": metric,
        "config_A": first,
        "config_B": second,
        "value_A": "2",
        "value_B": "1",
        "source": source,
    }
    return duel_of(Words(tag=tag, row=row), architectures())


def shown(found: Duel) -> tuple[object, ...]:
    """Everything of a head-to-head that a prediction sees."""
    return (
        found.metric,
        found.first_won,
        *(predict(side, factors())[found.metric] for side in (found.first, found.second)),
    )


def test_a_head_to_head_is_read_from_its_words(tmp_path: Path) -> None:
    path = tmp_path / "duels.csv"
    path.write_text(
        HEADER
        + "h1,x,decode tok/s c1,Qwen3-VL-32B FP8 TP=2 (2 Sparks),Qwen3-VL-32B FP8 TP=1 (1 Spark),12,7,A,1.7,[topology]\n"
        + "h2,x,decode tok/s c1,Qwen3.6-27B NVFP4 vLLM,Qwen3.6-27B BF16 vLLM,11.5,4.5,A,2.5,[quant]\n"
        + "h3,x,decode tok/s c1,a,b,11,10,A,1.1,[quant] within noise\n"
        + "h4,x,KV pool tokens,Qwen3.6-27B FP8 TP=2,Qwen3.6-27B FP8 TP=1,12,7,A,1.7,[topology]\n"
        + 'h5,x,prefill tok/s pp2048,Qwen3.6-27B NVFP4,Qwen3.6-27B BF16,"1,937","1,000",A,1.9,[quant]\n'
        + "h6,x,decode tok/s c1,Qwen3.6-27B NVFP4,Qwen3.6-27B BF16,12,OOM,A,,[quant]\n",
        encoding="utf-8",
    )
    found = [duel_of(words, architectures()) for words in read_duels(path)[:2]]
    assert [d.first.setup.tp for d in found] == [2, 1]
    assert [d.second.setup.format for d in found] == ["fp8", "bf16"]
    rows = tmp_path / "rows.csv"
    rows.write_text(ROWS, encoding="utf-8")
    report = compare_rows(rows, h2h_path=path)
    assert report.head_to_heads["topology"] == Wins(rows=2, decided=1, right=1)
    assert report.head_to_heads["quant"] == Wins(rows=3, decided=2, right=2)
    assert report.undecided == {"not a rate or a time to first token": 1, "a value is not a number": 1}
    assert report.assumed["head-to-head: engine not given: vllm"] == 2
    assert "not decided" in report.text()


@pytest.mark.parametrize(
    ("words", "format_name", "reported"),
    [
        ("google/gemma-4-26B-A4B-it TP=2", "bf16", "quantisation not named: as published"),
        ("openai/gpt-oss-120b TP=2", "mxfp4", "quantisation not named: as published"),
        ("MiniMaxAI/MiniMax-M2.7-230B TP=2", "fp8", "quantisation not named: as published"),
        ("DeepSeek V4 Flash TP=2", "fp8+mxfp4", None),
        ("Nemotron-3-Super TP=2", "nvfp4", "quantisation not named: the usual one on Sparks"),
        ("Qwen3.6-35B-A3B PrismaQuant 4.75b", "prismaquant", None),
        ("nemotron3-nano-30b-q8-llamacpp", "q8_0", None),
        ("ornith-35b-nvfp4-aeon7", "nvfp4", None),
    ],
)
def test_the_quantisation_is_named_or_published(words: str, format_name: str, reported: str | None) -> None:
    found = duel(words, words)
    assert found.first.setup.format == format_name
    assert [what for what in found.assumed if what.startswith("quantisation")] == (
        [reported] if reported else []
    )


@pytest.mark.parametrize(
    ("words", "tp", "pp", "replicas"),
    [
        ("TP=2 (2 Sparks)", 2, 1, 1),
        ("TP-2", 2, 1, 1),
        ("tensor-parallel 2", 2, 1, 1),
        ("tensor_parallel_size=2", 2, 1, 1),
        ("two Sparks", 2, 1, 1),
        ("4 nodes", 4, 1, 1),
        ("3x Spark PP=3", 1, 3, 1),
        ("2x TP=1 replicas (shuffle)", 1, 1, 2),
        ("2 independent TP=1 replicas", 1, 1, 2),
        ("B12X kernels MTP 3/1/4", 1, 1, 1),
    ],
)
def test_the_topology_of_a_side(words: str, tp: int, pp: int, replicas: int) -> None:
    first = duel(f"Qwen3.6-27B FP8 {words}", "Qwen3.6-27B FP8 TP=1").first
    assert (first.setup.tp, first.setup.pp, first.replicas) == (tp, pp, replicas)


def test_each_side_has_its_own_model() -> None:
    found = duel("Llama-3.1-8B NVFP4", "Ministral-8B BF16")
    assert (found.first.model, found.second.model) == ("llama-3.1-8b", "ministral-8b")


def test_notes_may_name_the_model_and_nothing_else() -> None:
    row = {"metric": "tok/s", "config_A": "TP=2", "config_B": "TP=1", "value_A": "2", "value_B": "1"}
    notes = "[topology] Qwen3.8-27B at c8: TP=4 is faster still"
    found = duel_of(Words(tag="topology", row=row | {"notes": notes}), architectures())
    assert (found.first.model, found.first.setup.tp, found.first.workload.concurrency) == (
        "qwen3.8-27b",
        2,
        1,
    )
    with pytest.raises(Declined, match="model not named"):
        duel_of(Words(tag="topology", row=row), architectures())


def test_the_word_same_means_the_other_side() -> None:
    found = duel("same, no spec", "Qwen3.6-27B FP8 SGLang TP=2 MTP k=3", tag="spec-method")
    assert (found.first.setup.tp, found.first.setup.method, found.second.setup.k) == (2, "none", 3)


@pytest.mark.parametrize("words", ["c8", "c=8", "concurrency=8", "concurrency 8", "8 concurrent", "8 users"])
def test_how_many_at_once(words: str) -> None:
    found = duel("Qwen3.6-27B FP8", "Qwen3.6-27B NVFP4", metric=f"decode agg tok/s {words}")
    assert found.first.workload.concurrency == 8


def test_an_assumed_single_request_is_reported() -> None:
    assert "concurrency not given: 1" in duel("Qwen3.6-27B FP8", "Qwen3.6-27B NVFP4", metric="tok/s").assumed


@pytest.mark.parametrize(
    "metric", ["TTFT ms pp2048", "time to first token (ms) pp2048", "first-token latency pp2048"]
)
def test_the_first_token_is_no_rate(metric: str) -> None:
    found = duel("Qwen3.6-27B FP8", "Qwen3.6-27B NVFP4", metric=metric)
    assert (found.metric, found.lower_wins, found.first_won) == ("ttft_ms", True, False)


SPELLINGS = (
    lambda text: text.lower(),
    lambda text: text.upper(),
    lambda text: re.sub(r"TP ?= ?(\d)", r"TP\1", text),
    lambda text: re.sub(r"TP ?= ?(\d)", r"TP-\1", text),
    lambda text: text.replace("NVFP4", "NV-FP4"),
    lambda text: re.sub(r"\bc(\d+)\b", r"concurrency=\1", text),
    lambda text: re.sub(r"\bc(\d+)\b", r"\1 concurrent", text),
    lambda text: re.sub(r"k ?= ?(\d)", r"num_speculative_tokens=\1", text),
    lambda text: re.sub(r"(Qwen3\.\d|Gemma-4|DeepSeek|MiniMax|GLM-5\.\d|gpt)-", r"\1 ", text),
    lambda text: text.replace("tok/s", "tokens/s").replace("TTFT", "time to first token"),
    lambda text: re.sub(r"\b([12])x? Sparks?", r"\1x DGX Spark", text),
)
WORDS = (
    (
        "decode agg tok/s c8 pp1024 tg128",
        "openai/gpt-oss-120b TP=1 (1 Spark)",
        "openai/gpt-oss-120b TP=2 (2 Sparks)",
    ),
    (
        "decode tok/s c1",
        "MiniMax-M2.7 MXFP4 vLLM TP=2 (2 Sparks)",
        "Qwen3.6-27B-FP8 SGLang MTP k=3 (1 Spark)",
    ),
    ("TTFT ms pp2048 d4096 c4", "Qwen3.6-27B NVFP4 vLLM MTP k=3", "Qwen3.6-27B Q4_K_M llama.cpp"),
    ("prefill tok/s pp8192", "DeepSeek-V4-Flash TP=2", "GLM-5.3-Flash EXL3 4bpw TP=2"),
    ("aggregate tok/s c16", "Gemma-4-26B-A4B NVFP4", "Gemma-4-26B-A4B BF16"),
)


@given(st.sampled_from(WORDS), st.permutations(SPELLINGS).map(lambda found: found[:3]))
def test_spelling_changes_nothing(words: tuple[str, str, str], spellings: list[object]) -> None:
    metric, first, second = words
    for spell in spellings:
        metric, first, second = (spell(text) for text in (metric, first, second))  # type: ignore[operator]
    assert shown(duel(first, second, metric=metric)) == shown(duel(words[1], words[2], metric=words[0]))


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.text(max_size=10))
def test_any_words_are_a_head_to_head_or_declined(metric: str, first: str, second: str, value: str) -> None:
    row = {
        "metric": metric,
        "config_A": "Qwen3.6-27B FP8 " + first,
        "config_B": second,
        "value_A": value,
        "value_B": "1",
    }
    try:
        found = duel_of(Words(tag="other", row=row), architectures())
    except Declined:
        return
    assert found.first.setup.format == "fp8" or "fp" in first.lower() or "q" in first.lower()


def test_kernels_kv_types_and_pipelines_are_read() -> None:
    found = duel("Qwen3.6-27B NVFP4 TP=2", "Qwen3.6-27B NVFP4 PP=2 over 2 Sparks", tag="topology")
    assert [(side.setup.tp, side.setup.pp) for side in (found.first, found.second)] == [(2, 1), (1, 2)]
    assert [side.workload.prompt for side in (found.first, found.second)] == [0, 0], "PP=2 is no prompt"
    found = duel("Qwen3.6-27B NVFP4 on 2 Sparks, pipeline parallel", "Qwen3.6-27B NVFP4 tp2pp2")
    assert [(side.setup.tp, side.setup.pp) for side in (found.first, found.second)] == [(1, 2), (2, 2)]
    kept = [
        duel(f"Qwen3.6-27B NVFP4, {words}", "Qwen3.6-27B NVFP4").first.setup.kv_bytes
        for words in ("fp8_e4m3 KV", "--kv-cache-dtype fp8", "KV cache in 8 bit", "nvfp4 KV", "bf16 kv-cache")
    ]
    assert kept == [1.0, 1.0, 1.0, 0.5625, 2.0]
    row = {"metric": "decode tok/s c1", "value_A": "2", "value_B": "1", "source": "x"}
    sides = {"config_A": "qwen-3.6-35b-a3b fp8 vLLM 0.26", "config_B": "qwen-3.6-35b-a3b bf16 vLLM 0.26"}
    read = duel_of(Words(tag="quant", row=row | sides | {"notes": "fp8 uses marlin"}), architectures())
    assert (read.first.setup.kernel, read.second.setup.kernel) == ("marlin", "")
