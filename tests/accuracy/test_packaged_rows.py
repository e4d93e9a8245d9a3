"""Packaged rows whose source has something that no cell has: a harness, a fault, a warm-up."""

from __future__ import annotations

import pytest
from accuracy_rows import packaged, rates, row

from sparkfleet.accuracy.models import Declined
from sparkfleet.accuracy.published import is_upper_bound
from sparkfleet.accuracy.rows import case_of
from sparkfleet.knowledge.measurements import architectures


def test_a_driver_that_lost_two_thirds_of_the_speed_is_no_measure_of_a_model() -> None:
    with pytest.raises(Declined, match="impaired"):
        case_of(row(notes="driver regression", decode_tps_aggregate="11.3"), architectures())
    after = [one for one in packaged() if "b0617" <= one["id"] <= "b0621"]
    assert len(after) == 5
    assert [rates(one) for one in after] == [None] * 5


def test_a_node_at_29_percent_of_its_clock_is_no_measure_of_a_model() -> None:
    """WeZZard's scripts/check-clocks.sh: all of his REPORT.md; BASELINE.md has figures of others."""
    of_source = [one for one in packaged() if "WeZZard/dgx-spark-bench" in one["source_url_or_repo_path"]]
    slow = [one for one in of_source if "REPORT.md" in one["source_url_or_repo_path"]]
    assert len(slow) == 53
    assert [rates(one) for one in slow] == [None] * 53
    assert None not in [rates(one) for one in of_source if one not in slow]


def test_a_warm_up_in_the_sample_leaves_the_decode_rate() -> None:
    cold = {"notes": "llama-benchy; warm-up in the sample", "ttft_ms": "590", "prefill_tps": "2015"}
    case = case_of(row(**cold, decode_tps_per_request="24"), architectures())
    assert dict(case.measured) == {"decode_tps_per_request": 24.0}
    assert sum("warm-up in the sample" in one["notes"] for one in packaged()) == 21


def test_prompts_of_a_harness_that_counted_with_another_tokenizer_have_the_servers_length() -> None:
    """llama-benchy in GPT-2's tokens: rate × est_ppt of Gemma-4-26B's 25,000 in 05-big-context.md are 22,787."""
    ours = "djangodevreng/dgx-spark-benchmarks:results/gemma-4/gemma-4-26b-a4b-it/bf16-v23/05-big-context.md"
    sizes = {int(one["prompt_tokens"]) for one in packaged() if ours in one["source_url_or_repo_path"]}
    assert max(sizes) == pytest.approx(3.09806 * 7355.28, rel=0.01)


@pytest.mark.parametrize(
    ("source", "sent"),
    [  # (prompt, answer, window, requests in all, chunk) of the row with the most requests at once
        ("jschmied/dgx-spark-setup-guide:appendix/gb10-nvfp4", (12800, 512, "closed", 36, 16384)),
        ("MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark:docs/", (32768, 512, "served", None, 2048)),
        ("tonyd2wild/MiMo-V2.5-Omni-3x-DGX-Spark-TP-3-MTP", (1202, 304, "closed", 12, 2048)),
        ("jvr0x/dgx-spark-bench:results/qwen3.6-27b-nvfp4-nvidia", (1024, 256, "closed", None, 8192)),
    ],
)
def test_rows_have_what_the_harness_of_their_source_sends(source: str, sent: tuple[object, ...]) -> None:
    rows = [one for one in packaged() if source in one["source_url_or_repo_path"] and one["prompt_tokens"]]
    most = max(rows, key=lambda one: (int(one["concurrency"]), int(one["prompt_tokens"])))
    case = case_of(most, architectures())
    load = case.workload
    assert (load.prompt, load.generate, load.window, load.requests, case.setup.chunk) == sent


def test_only_runs_whose_page_names_eager_mode_are_without_graphs() -> None:
    """kubis.ai lists `--enforce-eager` among the flags of gpt-oss-120b alone."""
    of_source = [one for one in packaged() if "//kubis.ai/" in one["source_url_or_repo_path"]]
    eager = {one["model"] for one in of_source if case_of(one, architectures()).setup.eager}
    assert len({one["model"] for one in of_source}) == 3
    assert eager == {"openai/gpt-oss-120b"}


def test_a_rate_that_is_another_one_divided_is_not_counted_twice() -> None:
    found = [one for one in packaged() if "MiMo-V2.5-Omni-3x-DGX-Spark" in one["source_url_or_repo_path"]]
    assert len(found) == 14
    assert {metric for one in found for metric, _ in case_of(one, architectures()).measured} == {
        "decode_tps_aggregate"
    }


def test_prompts_in_a_prefix_cache_are_no_measure_of_a_prefill() -> None:
    (again,) = (
        one
        for one in packaged()
        if "warm2" in one["source_url_or_repo_path"] and one["depth"] == "" and one["prompt_tokens"] == "2270"
    )
    assert "ttft_ms" not in dict(case_of(again, architectures()).measured)


def test_all_figures_of_a_counting_task_are_upper_bounds() -> None:
    issue = "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/28"
    cases = [case_of(row, architectures()) for row in packaged() if row["source_url_or_repo_path"] == issue]
    assert [case.setup.k for case in cases] == [0, 1, 2, 3, 4, 4, 4]
    assert all(is_upper_bound(case) for case in cases if case.setup.k)
