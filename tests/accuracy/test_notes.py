"""What of the notes counts is kept, and nothing else of them."""

import csv
from importlib import resources

import pytest

from sparkfleet.accuracy import notes


def test_what_is_packaged_holds_only_words_that_tell() -> None:
    file = resources.files("sparkfleet.knowledge.measurements").joinpath("benchmarks.csv")
    packaged = [row["notes"] for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
    assert [said for said in packaged if notes.telling(said) != said] == []
    assert len(packaged) > 2000


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("My own words on a Tuesday", ""),
        ("Prose reasoning, then prose; prose again", "prose reasoning; prose"),
        ("enforce-eager behind the firewall", "enforce-eager"),
        ("non-eager, 16 serving slots, incl. TTFT", "16 serving slots; incl. ttft"),
        ("llama-batched-bench of our batched-bench", "llama-batched-bench; batched-bench"),
        ("TP=2 over TCP, rate=1.5 rps, completed=300", "over tcp; rate=1.5 rps; completed=300"),
        ("-ub 2048, per-request prompt/TTFT", "-ub 2048; per-request prompt/ttft"),
    ],
)
def test_of_a_sentence_the_words_remain_and_say_the_same(said: str, kept: str) -> None:
    assert notes.telling(said) == kept
    for read in (notes.window, notes.slots, notes.chunk, notes.arrivals, notes.requests, notes.content):
        assert read(kept) == read(said.lower())


def test_eager_is_not_what_says_that_it_is_not() -> None:
    assert [notes.says("eager", said) for said in ("eager", "enforce_eager", "non-eager", "")] == [
        True,
        True,
        False,
        False,
    ]
