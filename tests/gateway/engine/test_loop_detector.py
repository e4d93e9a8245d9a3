"""Answers that repeat themselves: found for every API, in any cut of the bytes, and nothing else is taken for one."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.gateway.engine.loop_detector import TOKEN, LoopDetector, texts_of

WORDS = ("spark", "cable", "rail", "node", "engine", "token", "stream", "answer", "queue", "group", "plan")


def chat(text, index=0):
    return {"choices": [{"index": index, "delta": {"content": text}}]}


EVENTS = {
    "chat": chat,
    "reasoning": lambda text: {"choices": [{"index": 0, "delta": {"reasoning_content": text}}]},
    "completion": lambda text: {"choices": [{"index": 0, "text": text}]},
    "tool call": lambda text: {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": text}}]}}]},
    "anthropic": lambda text: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}},
    "thinking": lambda text: {
        "type": "content_block_delta",
        "delta": {"type": "thinking_delta", "thinking": text},
    },
    "responses": lambda text: {"type": "response.output_text.delta", "delta": text},
}


def lines(texts, event=chat):
    return b"".join(b"data: %b\n\n" % json.dumps(event(text)).encode() for text in texts)


def prose(count, seed=0):
    dice = random.Random(seed)
    return [f"{dice.choice(WORDS)}{dice.randrange(100)} " for _ in range(count)]


@pytest.mark.parametrize("api", EVENTS)
def test_a_loop_is_found_in_every_api(api):
    looping = [f"{word} " for word in WORDS] * 40
    detector = LoopDetector(64)
    assert not detector.feed(lines(prose(200), EVENTS[api]))
    assert detector.feed(lines(looping, EVENTS[api]))
    assert detector.found


@pytest.mark.parametrize("unit", ["a", "ab", "!", "The answer is 4. ", "0, 0, 1, ", "x" * 70 + "y"])
def test_a_loop_is_found_soon_after_its_limit(unit):
    detector, limit = LoopDetector(100), 100 * TOKEN
    assert not detector.feed(lines(prose(50)))
    fed = 0
    while not detector.feed(lines([unit])):
        fed += len(unit)
        assert fed < 2 * limit
    assert fed > limit / 2


@given(st.data())
def test_the_bytes_may_be_cut_anywhere(data):
    whole = lines([*prose(30), *(["loop and loop again. "] * 60)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    detector = LoopDetector(128)
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        detector.feed(whole[start:end])
    assert detector.found


@pytest.mark.parametrize(
    "texts",
    [
        prose(3000),
        [f"| row {i} | {i * i} |\n" for i in range(500)],
        ["| 0 | 0 |\n"] * 20,
        ["def test_one():\n    pass\n\n"] * 2,
    ],
    ids=["prose", "table", "few rows", "code"],
)
def test_what_only_looks_like_one_is_none(texts):
    assert not LoopDetector(128).feed(lines(texts))


def test_choices_are_apart():
    detector = LoopDetector(64)
    mixed = [json.dumps(chat(text, i % 2)) for i, text in enumerate(prose(1000))]
    assert not detector.feed("".join(f"data: {one}\n\n" for one in mixed).encode())
    assert detector.feed(lines(["again "] * 200, lambda text: chat(text, 1)))


@pytest.mark.parametrize(
    "data", [b"[DONE]", b"{", b"3", b"null", b'{"choices": 3}', b'{"choices": [null]}', b'{"delta": null}']
)
def test_what_is_no_text_is_passed_over(data):
    assert list(texts_of(data)) == []
