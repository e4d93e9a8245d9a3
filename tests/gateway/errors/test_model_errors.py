"""Errors of requests for a model."""

import pytest
from gateway_values import LOADING

from sparkfleet.gateway.errors import model_errors
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.routing_table import ModelEntry


@pytest.mark.parametrize(
    "made",
    [
        model_errors.not_ready(LOADING, 0.0),
        model_errors.no_engine(LOADING, 0.0),
        model_errors.engine_lost(LOADING, 0.0),
    ],
)
def test_whoever_must_wait_is_told_how_long(made: ApiError) -> None:
    assert (b"retry-after", b"30") in made.headers
    assert "Try again in 30 s." in str(made)


@pytest.mark.parametrize(
    ("state", "detail", "says"),
    [
        (
            "starting",
            "loading weights, 40 of 100 GiB",
            'The model "qwen" is starting: loading weights, 40 of 100 GiB.',
        ),
        ("failed", "out of memory", 'The model "qwen" has failed to start: out of memory.'),
        ("stopped", "", 'The model "qwen" is stopped.'),
    ],
)
def test_what_is_not_ready_says_what_is_happening(state: str, detail: str, says: str) -> None:
    model = ModelEntry.model_validate({"name": "qwen", "deployment": "d", "state": state, "detail": detail})
    assert str(model_errors.not_ready(model, 0.0)).startswith(says)


def test_an_unknown_model_names_those_there_are_and_shortens_what_is_long() -> None:
    assert "Available: a, b." in str(model_errors.unknown_model("c", ["a", "b"]))
    assert "No model is deployed" in str(model_errors.unknown_model("c", []))
    long = str(model_errors.unknown_model("x" * 10_000, [str(i) for i in range(1000)]))
    assert len(long) < 400


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/embeddings", 'The model "qwen" makes no embeddings: its engine does not serve /v1/embeddings.'),
        ("/v1/audio/transcriptions", 'The model "qwen" transcribes no speech'),
        ("/v1/rerank", 'The model "qwen" ranks no documents'),
        ("/v1/tokenize", 'The model "qwen" does not do that: its engine does not serve /v1/tokenize.'),
    ],
)
def test_a_task_that_the_model_lacks_is_named(path: str, words: str) -> None:
    made = model_errors.not_its_task("qwen", path)
    assert made.what.startswith(words)
    assert (made.status, made.code) == (404, "unsupported_by_model")
