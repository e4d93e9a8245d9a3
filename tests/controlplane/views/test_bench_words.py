"""Measured speeds in words: each figure beside the band that its plan has for that load, and no other one."""

import pytest
import statuses

from sparkfleet.controlplane.state.tables.bench_table import BenchLoad, BenchResult, bench_setup_of
from sparkfleet.controlplane.views.bench_words import LoadBands, bands_of, bench_lines, bench_words
from sparkfleet.perf.prediction import Band

TTFT, ALONE, TOGETHER = (
    Band(low=380.0, mid=420.0, high=460.0),
    Band(low=39.0, mid=50.0, high=64.0),
    Band(low=95.0, mid=121.0, high=155.0),
)
NOON = 1_796_040_000.0
DAY = "2026-11-30, prompts of 2,048 tokens"


@pytest.fixture
def rung():
    found = statuses.rung()
    predicted = {
        "ttft_ms": TTFT,
        "decode_tps_per_request": ALONE,
        "decode_tps_aggregate": TOGETHER,
        "prompt": 2048,
        "concurrency": 4,
    }
    return found.model_copy(update={"prediction": found.prediction.model_copy(update=predicted)})


def result(rung, concurrency=1, prompt=2048):
    load = BenchLoad(content="mixed", prompt=prompt, answer=256, concurrency=concurrency)
    setup = bench_setup_of(rung.candidate)
    return BenchResult(setup=setup, load=load, ttft_ms=412.0, request_tps=48.2, group_tps=118.2, at=NOON)


def test_without_a_prediction(rung):
    assert bench_words(result(rung)) == "alone: TTFT 412 ms, 48.2 tok/s for one user"
    assert bench_words(result(rung, 4)) == "4 at once: TTFT 412 ms, 48.2 tok/s each, 118 tok/s together"


@pytest.mark.parametrize(
    ("concurrency", "prompt", "bands"),
    [
        (1, 2048, LoadBands(TTFT, ALONE)),
        (4, 2048, LoadBands(group_tps=TOGETHER)),
        (2, 2048, LoadBands()),
        (1, 512, LoadBands()),
        (4, 512, LoadBands()),
    ],
)
def test_a_plan_predicts_its_own_loads(rung, concurrency, prompt, bands):
    assert bands_of(rung.prediction, result(rung, concurrency, prompt).load) == bands


def test_those_of_a_setup_the_smaller_load_first_and_no_others(rung):
    other = result(rung).model_copy(
        update={"setup": bench_setup_of(rung.candidate).model_copy(update={"tp": 8})}
    )
    lines = list(bench_lines([rung], [other, result(rung, 4), result(rung)]))
    assert lines == [
        f"{DAY}, alone: TTFT 412 ms (predicted 380–460), 48.2 tok/s (predicted 39–64) for one user",
        f"{DAY}, 4 at once: TTFT 412 ms, 48.2 tok/s each, 118 tok/s (predicted 95–155) together",
    ]
    assert list(bench_lines([], [result(rung)])) == []
