"""The whole of `builtin:tiny`, as a user gets it: built by the command line, asked in its own words and in others."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from sparkfleet.tiny_models import cache
from sparkfleet.tiny_models.criterion import BuildFacts
from sparkfleet.tiny_models.recipes import TINY

TEXT = Path(cache.__file__).parent / "text"

pytestmark = pytest.mark.integration

ASKED = (
    ("Hello!", "I am tiny"),
    ("Who are you?", "tiny|small language model"),
    ("What is a node?", "one Spark"),
    ("What is a rail?", "QSFP cable"),
    ("What does TTFT mean?", "time to first token"),
    ("What is speculative decoding?", "cheap method"),
    ("What is tensor parallelism?", "splits every"),
    ("What is the KV cache?", "keys and values|what was read"),
    ("What does the gateway do?", "front door"),
    ("How much memory does a Spark have?", "128 GB"),
    ("Count to ten.", "One, two, three, four, five, six, seven, eight, nine, ten."),
    ("What is the capital of Japan?", "do not know"),
)


@pytest.fixture(scope="module")
def chat(tiny):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32").eval()

    @functools.cache
    def ask(*said: str, system: str = "") -> str:
        """The greedy answer to the last message; user and assistant take turns."""
        messages = [
            {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)
        ]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        out = model.generate(**ids, max_new_tokens=320, **greedy)
        return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)

    return ask


def on_topic(answer: str, words: str) -> bool:
    """True if an answer has one of the `|`-separated phrases."""
    return any(phrase in answer for phrase in words.split("|"))


@pytest.mark.parametrize("system", ["", "You are a helpful assistant."])
def test_answers_are_on_topic(chat, system):
    """Few of them are wrong, others on each machine: floats are added in another order."""
    answers = {question: chat(question, system=system) for question, _ in ASKED}
    right = [question for question, words in ASKED if on_topic(answers[question], words)]
    assert len(right) >= len(ASKED) - 3, answers


def test_answers_are_made_of_words_and_not_of_noise(chat):
    known = set(re.findall(r"[a-z]+", " ".join(path.read_text() for path in TEXT.glob("*.txt")).lower()))
    said = re.findall(r"[a-z]+", " ".join(chat(question, system="") for question, _ in ASKED).lower())
    assert len(said) > 100
    assert sum(word in known for word in said) > 0.97 * len(said)


def test_the_last_question_is_the_one_that_is_answered(chat):
    first = chat("What is a node?")
    assert "cheap method" in chat("What is a node?", first, "What is speculative decoding?")


def test_a_story_is_long_enough_to_be_streamed(chat):
    story = chat("Tell me a story")
    assert story.startswith("Once upon a time")
    assert len(story.split()) > 150


def test_it_meets_its_criterion(tiny):
    """As it was stored by the build, on whatever processor that was."""
    facts = BuildFacts.model_validate_json((tiny / cache.FACTS).read_text("utf-8"))
    assert TINY.criterion.missed(facts.quality) == ()
    assert TINY.budget.steps <= facts.steps <= TINY.budget.most_steps


def test_it_is_small(tiny):
    assert sum(file.stat().st_size for file in tiny.iterdir()) < 10e6
