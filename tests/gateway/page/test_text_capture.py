"""Texts of requests: until when they are kept, and what is read of bodies and answers."""

import json

import pytest

from sparkfleet.gateway.page.text_capture import LONGEST, TextCapture, answer_of, prompt_of


def test_it_is_off_until_it_is_begun_and_ends_by_itself():
    now = [1000.0]
    capture = TextCapture(lambda: now[0])
    assert capture.until is None
    capture.begin(5)
    assert capture.until == 1300.0
    now[0] = 1300.0
    assert capture.until is None
    capture.begin(5)
    capture.end()
    assert capture.until is None


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"messages": [{"content": "first"}, {"content": "last"}]}, "last"),
        (
            {"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]}]},
            "a\nb",
        ),
        ({"prompt": "x" * 1000}, "x" * LONGEST),
        ({"prompt": ["a", "b"]}, "a\nb"),
        ({"input": "embed"}, "embed"),
        ({"messages": []}, ""),
        ({"messages": ["text"]}, ""),
        ({"prompt": 7}, ""),
        ([1], ""),
    ],
)
def test_the_prompt_of_a_body(document, found):
    assert prompt_of(json.dumps(document).encode()) == found


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_has_no_prompt(body):
    assert prompt_of(body) == ""


def test_the_text_of_a_stream_and_of_a_whole_answer():
    events = [{"choices": [{"delta": {"content": word}}]} for word in ("one ", '\u00e9 "two" ', "three")]
    stream = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
    assert answer_of(stream) == 'one \u00e9 "two" three'
    assert answer_of(
        b'{"choices":[{"message":{"role":"assistant","content":"whole\\n answer that is cut'
    ) == ("whole\n answer that is cut")
    assert answer_of(b'data: {"delta":{"text":"claude"}}') == "claude"
    assert answer_of(b'{"content":"cut \\u00') == ""
    assert answer_of(b"\x00\xff") == ""
