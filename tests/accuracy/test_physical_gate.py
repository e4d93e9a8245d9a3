"""A measurement that needs more than the machines have is not what it claims to be."""

import pytest

from sparkfleet.accuracy.physical_gate import impossible, possible
from sparkfleet.accuracy.rows import PublishedCase, case_of
from sparkfleet.knowledge.measurements import architectures


def _case(**cells: str) -> PublishedCase:
    row = {"model": "Qwen/Qwen3.5-27B", "quant": "fp8", "engine": "vllm", "nodes": "1", "concurrency": "1"}
    return case_of(row | {"source_url_or_repo_path": "github:a/b"} | cells, architectures())


def test_a_dense_model_cannot_decode_faster_than_its_weights_are_read() -> None:
    # 27B in FP8 and a BF16 head: about 28 GB a token, 9.7 tok/s at 273 GB/s.
    case = _case(decode_tps_per_request="30.4", prompt_tokens="512", prefill_tps="900")
    assert impossible(case) == {"decode_tps_per_request": impossible(case)["decode_tps_per_request"]}, (
        "only the decode rate is impossible"
    )
    assert "GB/s of weights; the machines have 1 × 273 GB/s" in impossible(case)["decode_tps_per_request"]
    assert possible(case).measured == (("prefill_tps", 900.0),)


@pytest.mark.parametrize(
    "cells",
    [
        {"decode_tps_per_request": "7.9"},
        {"decode_tps_per_request": "15", "nodes": "2", "tp": "2"},
        {"decode_tps_per_request": "30.4", "spec_method": "mtp", "spec_tokens": "3"},
        {"decode_tps_aggregate": "95", "concurrency": "16"},
    ],
)
def test_two_nodes_drafts_and_batches_reach_more(cells: dict[str, str]) -> None:
    case = _case(**cells)
    assert impossible(case) == {}
    assert possible(case) is case


def test_a_prompt_that_was_cached_would_need_more_flops_than_there_are() -> None:
    assert set(impossible(_case(prompt_tokens="2048", ttft_ms="165"))) == {"ttft_ms"}
    assert impossible(_case(prompt_tokens="2048", ttft_ms="1650")) == {}
    assert set(impossible(_case(prompt_tokens="2048", prefill_tps="23477"))) == {"prefill_tps"}
