"""A start in words, and its duration read back from them."""

import pytest
from controller_world import report

from sparkfleet.controlplane.views.ready_words import ready_words, start_words, started_s_of
from sparkfleet.group.report import GroupPhase
from sparkfleet.perf.prediction import Band, Prediction, Provenance
from sparkfleet.planner.types.plan import Candidate, GroupShape, Rung
from sparkfleet.units import GB

TIMES = {"engine": 41.2, "weights": 90.0, "kernels": 35.4, "warm-up": 0.2, "checks": 26.0}
PARTS = "engine 41 s, weights 1 min 30 s, kernels 35 s, checks 26 s"


@pytest.fixture
def rung():
    candidate = Candidate(
        model="org/m", shape=GroupShape(nodes=("spark1",)), engine="vllm", engine_version="0.32.0",
        context=4096, concurrency=4,
    )  # fmt: skip
    memory = Band(low=1.0, mid=1.0, high=1.0, provenance=Provenance.MODELLED)
    prediction = Prediction(memory_bytes_per_rank=memory, weights_bytes=80 * GB)
    return Rung(candidate=candidate, prediction=prediction, reason="")


def _ready(**fields):
    return report(phase=GroupPhase.READY, started_s=212.34, **fields)


def test_parts_are_beside_the_predicted_start(rung):
    found = start_words(_ready(start_times=TIMES), rung)
    assert found == f"{PARTS}; predicted 5 min to 19 min without checks"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"engine": "trtllm"}, PARTS), ({"device": "cpu"}, PARTS), ({}, f"{PARTS}; predicted")],
)
def test_what_is_not_predicted_has_its_parts_alone(rung, change, words):
    one = rung.model_copy(update={"candidate": rung.candidate.model_copy(update=change)})
    assert start_words(_ready(start_times=TIMES), one).startswith(words)
    assert ("predicted" in words) is ("predicted" in start_words(_ready(start_times=TIMES), one))


def test_an_engine_without_phases_has_no_parts(rung):
    assert start_words(_ready(), rung) == ""
    assert ready_words(_ready(), rung) == "started in 212.3 s"


def test_streams_that_differ_too_much_have_no_rate(rung):
    measured = {"ttft_ms": 24.0, "decode_tps_spread": 161.91, "measured_runs": 3.0}
    words = "; measured TTFT 24 ms, tok/s not known: its 3 streams are 16191% apart"
    assert ready_words(_ready(measured=measured), rung) == f"started in 212.3 s{words}"


def test_a_group_of_an_earlier_plan_has_no_prediction():
    assert ready_words(_ready(start_times=TIMES), None) == f"started in 212.3 s ({PARTS})"


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 212.3),
        ({"start_times": TIMES, "rung": 1, "measured": {"ttft_ms": 24.0, "decode_tps": 17.3}}, 212.3),
        ({"adopted": True}, None),
        ({"adopted": True, "unused": True}, None),
    ],
)
def test_the_duration_is_read_back_from_the_event_of_a_start_only(rung, fields, seconds):
    assert started_s_of(ready_words(_ready(**fields), rung)) == seconds


@pytest.mark.parametrize("message", ["", "started in 12 minutes", "restarted in 3 s", "ready"])
def test_other_words_have_no_duration(message):
    assert started_s_of(message) is None


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--chat-template"),
        ("sglang", "--chat-template"),
        ("trtllm", "--chat_template"),
        ("llama.cpp", "--chat-template-file"),
    ],
)
def test_a_group_that_answers_no_chats_has_the_reason_and_the_remedy(engine, flag):
    words = ready_words(_ready(engine=engine, chat_refusal="HTTP 400: there is no chat template."), None)
    assert words == (
        "started in 212.3 s; answers no chats: HTTP 400: there is no chat template. Only /v1/completions serves. A base"
        " model has no chat template; for any other one name a file that its engine can read among `engine_args`:"
        f" [{flag}, FILE]"
    )
    assert started_s_of(words) == 212.3
