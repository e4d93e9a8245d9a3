"""Ends of answers that the clients of the fault tests accept. No fleet is needed."""

import json

import pytest
from asking import HONEST, _end, _refused

from sparkfleet.gateway.engine.engine_error import in_dialect
from sparkfleet.gateway.errors.api_error import error_json
from sparkfleet.gateway.errors.model_errors import unknown_model
from sparkfleet.gateway.errors.request_errors import draining, internal

ENGINES = (
    '{"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}'
)
FLAT = '{"object": "error", "message": "No more memory.", "type": "InternalServerError", "param": null, "code": 500}'
"""SGLang's and TensorRT-LLM's: the gateway puts it into OpenAI's words."""


def event(**fields):
    return "data: " + json.dumps(fields)


TOKEN = event(choices=[{"text": 'an "error"'}])
USAGE = event(choices=[], usage={"completion_tokens": 1})
LOST = "data: " + error_json("The engine went away.", 502, code="engine_lost", dialect="openai").decode()


@pytest.mark.parametrize(
    ("status", "text", "end"),
    [
        (503, draining().body("openai").decode(), "told"),
        (500, ENGINES, "told"),
        (500, FLAT, "wrong"),
        (500, in_dialect(FLAT.encode(), 500, "openai").decode(), "told"),
        (500, internal().body("openai").decode(), "wrong"),
        (500, "Internal Server Error", "wrong"),
        (503, "", "wrong"),
        (404, unknown_model("m", ()).body("openai").decode(), "wrong"),
    ],
)
def test_a_refusal_is_honest_where_it_says_in_openais_words_to_try_again(status, text, end):
    assert _refused(status, text)[0] == end
    assert (end in HONEST) == (end == "told")


@pytest.mark.parametrize(
    ("lines", "end"),
    [
        ([TOKEN, USAGE, "data: [DONE]"], "whole"),
        ([TOKEN, LOST], "told"),
        ([TOKEN, "data: " + ENGINES], "told"),
        ([TOKEN, "data: " + ENGINES, "data: [DONE]"], "cut"),
        ([TOKEN], "cut"),
        ([TOKEN, LOST, TOKEN], "cut"),
        ([TOKEN, "data: [DONE]"], "cut"),
        ([], "cut"),
        (["data: [DONE]"], "cut"),
    ],
)
def test_a_stream_ends_with_all_its_tokens_or_with_an_error(lines, end):
    assert _end(lines, 1)[0] == end
