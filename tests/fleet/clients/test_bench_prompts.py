"""Prompts of a measurement: as long as wanted, none like another, of the deployment's kind of text."""

from typing import get_args

import pytest

from sparkfleet.fleet.clients.bench_prompts import BenchPrompts
from sparkfleet.perf.workload import Content


def tokens(text):
    return len(text) // 3  # a tokenizer with three characters a token


@pytest.mark.parametrize("content", get_args(Content))
def test_they_have_the_wanted_length_once_the_tokenizer_is_known(content):
    prompts = BenchPrompts(content, 2048, seed=1)
    for kind in prompts.kinds:
        first = prompts.of(kind)
        prompts.learn(kind, first, tokens(first))
    assert all(abs(tokens(prompts.next()) - 2048) < 40 for _ in range(8))


def test_no_two_begin_alike_and_mixed_ones_take_turns():
    prompts = BenchPrompts("mixed", 300, seed=1)
    made = [prompts.next() for _ in range(40)]
    assert len({text[:12] for text in made}) == 40
    endings = [text.rpartition("\n\n")[2] for text in made]
    assert endings[:4] == endings[4:8]
    assert len(set(endings)) == 4


def test_another_seed_has_other_prompts():
    assert BenchPrompts("code", 300, seed=1).next() != BenchPrompts("code", 300, seed=2).next()


def test_a_count_that_no_engine_gave_changes_nothing():
    prompts = BenchPrompts("code", 300, seed=1)
    prompts.learn("code", "text", 0)
    assert len(prompts.next()) < 700
