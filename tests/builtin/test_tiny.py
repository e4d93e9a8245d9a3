"""The whole of `builtin:tiny`, as a user gets it: built by the command line, asked in its own words and in others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet.builtin import cache

pytestmark = pytest.mark.integration

ASKED = (
    ("Hello!", "I am tiny"),
    ("Who are you?", "small language model"),
    ("What is a node?", "one Spark"),
    ("What is a rail?", "QSFP cable"),
    ("What does TTFT mean?", "time to first token"),
    ("What is speculative decoding?", "cheap method"),
    ("What is tensor parallelism?", "splits every layer"),
    ("What is the KV cache?", "keys and values"),
    ("What does the gateway do?", "front door"),
    ("How much memory does a Spark have?", "128 GB"),
    ("Count to ten.", "One, two, three, four, five, six, seven, eight, nine, ten."),
    ("What is the capital of Japan?", "do not know"),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Killed once on the way, then built."""
    where = tmp_path_factory.mktemp("cache")
    argv = [sys.executable, "-m", "sparkfleet.builtin", "build", "tiny", "--cache", str(where)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as killed:
        assert any("training, step" in line for line in killed.stderr)
        killed.kill()
    assert not cache.is_built("tiny", where)
    built = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert list(where.glob(".*.unfinished")) == []
    return Path(built.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def chat(tiny):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32").eval()

    def ask(*said: str, system: str = "") -> str:
        """The greedy answer to the last of `said`, in which user and assistant take turns."""
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


@pytest.mark.parametrize(("question", "words"), ASKED)
def test_an_answer_is_on_topic(chat, question, words):
    assert words in chat(question)


def test_a_system_prompt_changes_nothing_that_matters(chat):
    right = [words in chat(question, system="You are a helpful assistant.") for question, words in ASKED]
    assert sum(right) >= len(right) - 1


def test_the_last_question_is_the_one_that_is_answered(chat):
    first = chat("What is a node?")
    assert "cheap method" in chat("What is a node?", first, "What is speculative decoding?")


def test_a_story_is_long_enough_to_be_streamed(chat):
    story = chat("Tell me a story")
    assert story.startswith("Once upon a time")
    assert len(story.split()) > 150


def test_it_is_small(tiny):
    assert sum(file.stat().st_size for file in tiny.iterdir()) < 10e6
