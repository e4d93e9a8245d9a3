"""The lines of a measurement: each figure with its prediction, if the plan has one for that load."""

import pytest
import statuses

from sparkfleet.cli.clients.bench import lines
from sparkfleet.controlplane.state.tables.bench_table import BenchLoad
from sparkfleet.fleet.clients.bench import Bench, BenchGroups, BenchSpeeds
from sparkfleet.perf.prediction import Band

PREDICTED = {
    "ttft_ms": Band(low=380.0, mid=420.0, high=460.0),
    "decode_tps_per_request": Band(low=39.0, mid=50.0, high=64.0),
    "decode_tps_aggregate": Band(low=95.0, mid=121.0, high=155.0),
    "prompt": 2048,
    "concurrency": 16,
}


def groups(number=1, device="cuda", **predicted):
    rung = statuses.rung()
    prediction = rung.prediction.model_copy(update=PREDICTED | predicted)
    candidate = rung.candidate.model_copy(update={"device": device})
    return BenchGroups(
        number, 16, 32768, rung.model_copy(update={"candidate": candidate, "prediction": prediction})
    )


def measured(requests=1, prompt=2048):
    load = BenchLoad(content="mixed", prompt=prompt, answer=256, concurrency=requests)
    return BenchSpeeds(load=load, ttft_ms=412.0, request_tps=31.0, group_tps=118.0, rounds=2)


def test_figures_of_the_planned_loads_are_beside_their_predictions():
    found = Bench(groups(), (measured(), measured(16)), disturbed="", kept=True)
    assert list(lines("big", found)) == [
        "big   spark1+spark2 · TP=2 · vLLM 0.32.0 · NVFP4 · EAGLE3 k=3",
        "  alone       TTFT 412 ms (predicted 380–460), 31 tok/s (predicted 39–64, below it) for one user",
        "  16 at once  TTFT 412 ms, 31 tok/s each, 118 tok/s (predicted 95–155) together",
        "  Kept: the next plans for this model begin with it, and `sparkfleet describe big` shows it.",
    ]


@pytest.mark.parametrize("one", [measured(8), measured(prompt=512), measured(16, prompt=512)])
def test_other_loads_have_no_prediction(one):
    found = Bench(groups(), (one,), disturbed="", kept=True)
    assert "predicted" not in list(lines("big", found))[1]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Bench(groups(device="cpu"), (measured(),), "", kept=True), "No speed is predicted for CPUs."),
        (
            Bench(groups(), (measured(),), "3 other requests for big", kept=False),
            "Not kept: 3 other requests for big ran meanwhile. The same command again when the fleet is idle.",
        ),
        (
            Bench(groups()._replace(rung=None, number=2), (measured(),), "", kept=False),
            "Not kept: its groups are at unlike rungs; `sparkfleet status` shows them.",
        ),
    ],
)
def test_what_becomes_of_it(found, words):
    assert list(lines("big", found))[-1].endswith(words)
