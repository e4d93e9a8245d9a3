"""Only relevant words of notes are kept."""

import csv
from importlib import resources

import pytest

from sparkfleet.accuracy import notes
from sparkfleet.accuracy.harnesses import HARNESSES
from sparkfleet.accuracy.notes import relevant_words, shared_context
from sparkfleet.accuracy.rows import case_of, source_of
from sparkfleet.knowledge.measurements import architectures


def test_packaged_notes_have_relevant_words_only() -> None:
    file = resources.files("sparkfleet.knowledge.measurements").joinpath("benchmarks.csv")
    packaged = [row["notes"] for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
    assert [text for text in packaged if notes.relevant_words(text) != text] == []
    assert len(packaged) > 2000


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("My own words on a Tuesday", ""),
        ("Prose reasoning, then prose; prose again", "prose reasoning, prose"),
        ("enforce-eager behind the firewall", "enforce-eager"),
        ("non-eager, 16 serving slots, incl. TTFT", "16 serving slots, incl. ttft"),
        ("llama-batched-bench of our batched-bench", "llama-batched-bench, batched-bench"),
        ("TP=2 over TCP, rate=1.5 rps, completed=300", "over tcp, rate=1.5 rps, completed=300"),
        ("-ub 2048, per-request prompt/TTFT", "-ub 2048, per-request prompt/ttft"),
        ("Essay, warm; run by our scripts; tokens incl. reasoning", "essay"),
        (
            "9 of the 50 requests failed; 50 requests in all",
            "9 of the 50 requests failed; 50 requests in all",
        ),
    ],
)
def test_the_relevant_words_of_a_sentence_remain_and_mean_the_same(text: str, kept: str) -> None:
    assert notes.relevant_words(text) == kept
    for read in (notes.window, notes.slots, notes.chunk, notes.arrivals, notes.requests, notes.content):
        assert read(kept) == read(text.lower())


def test_ray_is_not_read_from_its_negation() -> None:
    text = ("step37 docker ray", "vllm-ray nightly", "miaai no-ray multinode", "no ray", "array")
    assert [notes.has_trait("ray", one) for one in text] == [True, True, False, False, False]


def test_eager_is_not_read_from_its_negation() -> None:
    assert [notes.has_trait("eager", text) for text in ("eager", "enforce_eager", "non-eager", "")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tokens incl. reasoning, temp 0", None),
        ("started by its scripts; five prompts", None),
        ("reasoning tokens counted; mean of five", None),
        ("1.02M uncached retrieval", None),
        ("series qwopus-coder-q8", None),
        ("discount prompts, unprosecuted", None),
        ("math and reasoning", "math"),
        ("a coding prompt", "code"),
        ("count to 300", "structured"),
        ("prose, mean of two runs; server metrics, prose or code at its peak", "prose"),
        ("mean of 9 categories (code, json, prose, math...), mixed code and prose", "mixed"),
        ("llama-benchy 0.4.0; code", "code"),
        ("llama-benchy 0.4.0, 3 runs", "book"),
    ],
)
def test_the_text_is_read_by_words_and_the_first_remark_that_names_one_decides(
    text: str, kind: str | None
) -> None:
    assert notes.content(text) == kind


def test_a_kernel_is_named_by_its_word() -> None:
    read = {
        text: notes.has_trait("marlin", text)
        for text in ("marlin moe", "gptq_marlin", "no marlin", "non-marlin")
    }
    assert read == {"marlin moe": True, "gptq_marlin": True, "no marlin": False, "non-marlin": False}
    assert not notes.has_trait("marlin", "vllm_marlin_use_atomic_add=1")


def test_requests_that_failed_did_not_come() -> None:
    assert notes.requests("9 of the 50 requests failed (too long), 50 requests in all") == 41
    assert notes.requests("closed-loop") is None


def test_harnesses_that_are_packaged_are_sources_of_rows() -> None:
    file = resources.files("sparkfleet.knowledge.measurements").joinpath("benchmarks.csv")
    sources = {source_of(row) for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())}
    assert {one.source for one in HARNESSES.content.harnesses} <= sources


def test_the_harness_of_a_source_counts_if_its_row_is_silent() -> None:
    row = {
        "model": "Qwen3-Coder-30B-A3B NVFP4",
        "quant": "nvfp4",
        "engine": "vllm",
        "source_url_or_repo_path": "github:heitor-mocelin/dgx-spark-research:x",
        "decode_tps_per_request": "36",
    }
    both = [case_of(row | {"nodes": n, "tp": n}, architectures()).setup.eager for n in ("1", "2")]
    assert both == [False, True]


def test_a_prompt_that_the_level_before_has_sent_is_no_measure_of_a_prefill() -> None:
    row = {
        "model": "Qwen/Qwen3.6-27B-FP8",
        "quant": "fp8",
        "engine": "vllm",
        "source_url_or_repo_path": "github:luisefigueroa/pulsar-gb10-vllm-stack:x",
        "prompt_tokens": "512",
        "ttft_ms": "400",
        "decode_tps_aggregate": "8",
    }
    read = [dict(case_of(row | {"concurrency": n}, architectures()).measured) for n in ("1", "2")]
    assert read == [{"ttft_ms": 400.0, "decode_tps_aggregate": 8.0}, {"decode_tps_aggregate": 8.0}]


def test_a_loop_of_one_round_is_a_burst() -> None:
    row = {"model": "Qwen/Qwen3-14B-FP8", "quant": "fp8", "engine": "vllm", "decode_tps_aggregate": "8"}
    read = [
        case_of(
            row | {"concurrency": n, "notes": "closed-loop; 50 requests in all"}, architectures()
        ).workload
        for n in ("10", "50")
    ]
    assert [load.window for load in read] == ["closed", "served"]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("prose; dcp=4", 4),
        ("glm53-v11:kvopt-final dcp2", 2),
        ("dcp = 8", 8),
        ("dcp=1", 1),
        ("pd disaggregated", 1),
        ("dcp=0", 1),
    ],
)
def test_ranks_that_share_one_kv_cache(text: str, ranks: int) -> None:
    assert shared_context(text) == ranks


def test_they_are_kept_of_published_notes() -> None:
    assert relevant_words("decode context parallel DCP=2; 100G RoCE") == "dcp=2"
