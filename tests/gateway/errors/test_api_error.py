"""The form of each error in both APIs."""

import json

import pytest
from gateway_values import LOADING

from sparkfleet.gateway.errors import model_errors, request_errors
from sparkfleet.gateway.errors.api_error import ApiError, dialect_of


@pytest.mark.parametrize(
    ("made", "status", "openai", "anthropic", "code"),
    [
        (
            request_errors.unauthorised(given=False),
            401,
            "invalid_request_error",
            "authentication_error",
            "invalid_api_key",
        ),
        (
            request_errors.forbidden("m", "k"),
            403,
            "permission_error",
            "permission_error",
            "model_not_allowed",
        ),
        (
            model_errors.unknown_model("m", []),
            404,
            "invalid_request_error",
            "not_found_error",
            "model_not_found",
        ),
        (
            request_errors.bad_request("no"),
            400,
            "invalid_request_error",
            "invalid_request_error",
            "bad_request",
        ),
        (request_errors.too_large(5), 413, "invalid_request_error", "request_too_large", "request_too_large"),
        (
            request_errors.headers_too_large(),
            431,
            "invalid_request_error",
            "invalid_request_error",
            "headers_too_large",
        ),
        (
            request_errors.too_slow(7, 5),
            408,
            "invalid_request_error",
            "invalid_request_error",
            "request_timeout",
        ),
        (request_errors.no_such_path("/x"), 404, "invalid_request_error", "not_found_error", "not_found"),
        (
            request_errors.no_such_method("X", ["GET"]),
            405,
            "invalid_request_error",
            "invalid_request_error",
            "method_not_allowed",
        ),
        (request_errors.internal(), 500, "server_error", "api_error", "internal_error"),
        (model_errors.not_ready(LOADING, 0.0), 503, "server_error", "overloaded_error", "model_not_ready"),
        (model_errors.no_engine(LOADING, 0.0), 503, "server_error", "overloaded_error", "no_engine"),
        (model_errors.engine_lost(LOADING, 0.0), 503, "server_error", "overloaded_error", "engine_lost"),
        (request_errors.no_table(), 503, "server_error", "overloaded_error", "starting"),
        (request_errors.draining(), 503, "server_error", "overloaded_error", "draining"),
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


def test_whatever_was_asked_the_answer_is_ascii_json() -> None:
    body = model_errors.unknown_model('"}\r\nX: é\ud800\0', []).body("openai")
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
