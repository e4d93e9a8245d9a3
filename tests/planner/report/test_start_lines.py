"""The predicted start in a plan."""

import pytest
from rungs import rung

from sparkfleet.planner.report.explain.start_lines import start_lines, start_part_lines


@pytest.fixture
def one():
    """one(weights_gb, **fields of the candidate): a rung."""

    def one(gb=31, **fields):
        found = rung("spark1")
        return found.model_copy(
            update={
                "prediction": found.prediction.model_copy(update={"weights_bytes": gb * 10**9}),
                "candidate": found.candidate.model_copy(update={"engine": "vllm", **fields}),
            }
        )

    return one


def _text(lines):
    return " ".join(" ".join(lines).split())


def test_a_start_is_one_line_with_the_first_one_and_its_weights(one):
    assert _text(start_lines(one())) == (
        "start about 5 min predicted (2 min to 9 min), the first 6 min; weights 3 min"
    )


def test_files_that_are_read_whole_have_the_time_of_mapped_ones_beside_it(one):
    assert _text(start_lines(one(mmap=False))).endswith("weights 30 s (files read whole; mapped 3 min)")


def test_an_engine_that_compiles_nothing_has_no_first_start(one):
    assert _text(start_lines(one(engine="llama.cpp"))) == (
        "start about 20 s predicted (10 s to 50 s); weights 10 s"
    )


def test_every_part_is_shown_of_a_candidate_in_full(one):
    assert _text(start_part_lines(one())) == (
        "start engine 40 s, weights 3 min, kernels 20 s (80 s more the first time), warm-up 20 s"
    )


def test_what_nobody_measured_has_no_line_and_in_full_the_reason(one):
    unknown = one(engine_args=("--load-format=fastsafetensors",))
    assert start_lines(unknown) == []
    assert _text(start_part_lines(unknown)) == (
        "start not predicted: nobody has published one of this engine with this loader"
    )
