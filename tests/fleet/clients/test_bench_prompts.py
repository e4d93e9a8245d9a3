"""Prompts of a measurement: as long as wanted, none like another, of the deployment's kind of text."""

import re
from statistics import median, pstdev
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
        prompts.learn(first, tokens(first.text))
    assert all(abs(tokens(prompts.next().text) - 2048) < 40 for _ in range(8))


def pieces(text):
    """Pieces of a text, about as long as a real tokenizer's."""
    return len(re.findall(r" ?[A-Za-z]{1,7}|\d| ?[^\sA-Za-z\d]{1,2}|\s+", text))


@pytest.mark.parametrize("content", ["code", "prose"])
def test_a_dense_part_of_the_text_makes_no_longer_prompt(content):
    """Each prompt was one section: the median of three had 0.76 to 1.34 of the wanted tokens with Mistral's tokenizers, and
    0.68 to 1.73 with this one."""
    medians = []
    for seed in range(40):
        prompts = BenchPrompts(content, 2048, seed)
        first = prompts.of(content)
        prompts.learn(first, pieces(first.text))
        medians.append(median(pieces(prompts.next().text) for _ in range(3)) / 2048)
    assert pstdev(medians) < 0.08


def test_further_counts_correct_the_first_one():
    prompts = BenchPrompts("code", 2048, seed=1)
    first = prompts.of("code")
    prompts.learn(first, tokens(first.text) * 2)
    before = len(prompts.next().text)
    second = prompts.of("code")
    prompts.learn(second, tokens(second.text))
    assert before < len(prompts.next().text) < 2048 * 3


def test_no_two_begin_alike_and_mixed_ones_take_turns():
    prompts = BenchPrompts("mixed", 300, seed=1)
    made = [prompts.next().text for _ in range(40)]
    assert len({text[:12] for text in made}) == 40
    endings = [text.rpartition("\n\n")[2] for text in made]
    assert endings[:4] == endings[4:8]
    assert len(set(endings)) == 4


def test_another_seed_has_other_prompts():
    assert BenchPrompts("code", 300, seed=1).next() != BenchPrompts("code", 300, seed=2).next()


def test_a_count_that_no_engine_gave_changes_nothing():
    prompts = BenchPrompts("code", 300, seed=1)
    prompts.learn(prompts.of("code"), 0)
    assert len(prompts.next().text) < 700
