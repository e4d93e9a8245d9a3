import json

import pytest

from sparkfleet.gateway import api_errors
from sparkfleet.gateway.api_errors import ApiError, dialect_of
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

MODEL = ModelEntry(
    name="qwen",
    groups=(GroupEntry(app="a"),),
    deployment="d",
    state="starting",
    detail="loading weights, 40 of 100 GiB",
    retry_after_s=30,
)


@pytest.mark.parametrize(
    ("made", "status", "openai", "anthropic", "code"),
    [
        (
            api_errors.unauthorised(given=False),
            401,
            "invalid_request_error",
            "authentication_error",
            "invalid_api_key",
        ),
        (api_errors.forbidden("m", "k"), 403, "permission_error", "permission_error", "model_not_allowed"),
        (
            api_errors.unknown_model("m", []),
            404,
            "invalid_request_error",
            "not_found_error",
            "model_not_found",
        ),
        (api_errors.bad_request("no"), 400, "invalid_request_error", "invalid_request_error", "bad_request"),
        (api_errors.too_large(5), 413, "invalid_request_error", "request_too_large", "request_too_large"),
        (
            api_errors.headers_too_large(),
            431,
            "invalid_request_error",
            "invalid_request_error",
            "headers_too_large",
        ),
        (api_errors.too_slow(5), 408, "invalid_request_error", "invalid_request_error", "request_timeout"),
        (api_errors.no_such_path("/x"), 404, "invalid_request_error", "not_found_error", "not_found"),
        (
            api_errors.no_such_method("X", ["GET"]),
            405,
            "invalid_request_error",
            "invalid_request_error",
            "method_not_allowed",
        ),
        (api_errors.internal(), 500, "server_error", "api_error", "internal_error"),
        (api_errors.not_ready(MODEL, 0.0), 503, "server_error", "overloaded_error", "model_not_ready"),
        (api_errors.no_engine(MODEL, 0.0), 503, "server_error", "overloaded_error", "no_engine"),
        (api_errors.engine_lost(MODEL, 0.0), 503, "server_error", "overloaded_error", "engine_lost"),
        (api_errors.no_table(), 503, "server_error", "overloaded_error", "starting"),
        (api_errors.draining(), 503, "server_error", "overloaded_error", "draining"),
    ],
)
def test_each_refusal_in_both_dialects(
    made: ApiError, status: int, openai: str, anthropic: str, code: str
) -> None:
    assert made.status == status
    assert made.kind
    error = json.loads(made.body("openai"))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (openai, code)
    other = json.loads(made.body("anthropic"))
    assert other == {"type": "error", "error": {"type": anthropic, "message": error["message"]}}


@pytest.mark.parametrize(
    "made",
    [api_errors.not_ready(MODEL, 0.0), api_errors.no_engine(MODEL, 0.0), api_errors.engine_lost(MODEL, 0.0)],
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
    assert str(api_errors.not_ready(model, 0.0)).startswith(says)


def test_an_unknown_model_names_those_there_are_and_shortens_what_is_long() -> None:
    assert "Available: a, b." in str(api_errors.unknown_model("c", ["a", "b"]))
    assert "No model is deployed yet" in str(api_errors.unknown_model("c", []))
    long = str(api_errors.unknown_model("x" * 10_000, [str(i) for i in range(1000)]))
    assert len(long) < 400


def test_whatever_was_asked_the_answer_is_ascii_json() -> None:
    body = api_errors.unknown_model('"}\r\nX: é\ud800\0', []).body("openai")
    assert body.isascii()
    assert b"\n" not in body
    assert '"}' in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messagesx", "openai"),
        ("/v1/chat/completions", "openai"),
        ("/", "openai"),
    ],
)
def test_the_dialect_is_that_of_the_path(path: str, dialect: str) -> None:
    assert dialect_of(path) == dialect


@pytest.mark.parametrize(
    ("path", "what", "do"),
    [
        ("/v1/files", "stores no files", "into the request"),
        ("/v1/files/file-1/content", "stores no files", "into the request"),
        ("/v1/batches", "has no batches", "X-Sparkfleet-Priority: batch"),
        ("/v1/messages/batches", "has no batches", "X-Sparkfleet-Priority: batch"),
        ("/v1/threads/t/runs", "stores no conversations", "with each request"),
        ("/v1/fine_tuning/jobs", "trains no models", "model: DIRECTORY"),
        ("/v1/filesystem", 'Unknown path: "/v1/filesystem"', "GET /v1"),
    ],
)
def test_an_api_that_no_model_can_have_is_refused_with_what_to_do_instead(
    path: str, what: str, do: str
) -> None:
    made = api_errors.no_such_path(path)
    assert (made.status, made.code) == (404, "not_found")
    assert what in made.what
    assert do in made.do


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
    made = api_errors.not_its_task("qwen", path)
    assert made.what.startswith(words)
    assert (made.status, made.code) == (404, "unsupported_by_model")
