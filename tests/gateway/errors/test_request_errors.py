"""Errors of requests whatever their model."""

import pytest

from sparkfleet.gateway.access.allowed_paths import meant_path
from sparkfleet.gateway.errors import request_errors


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
    made = request_errors.no_such_path(path)
    assert (made.status, made.code) == (404, "not_found")
    assert what in made.what
    assert do in made.do


@pytest.mark.parametrize(
    ("path", "do"),
    [
        ("/v1/v1/messages", "It is /v1/messages: this client adds /v1 by itself, so give it the base URL without /v1."),
        ("/v1/v1/models/", "It is /v1/models: this client adds /v1 by itself, so give it the base URL without /v1."),
        ("/chat/completions", "It is /v1/chat/completions: give this client the base URL with /v1 at its end."),
        ("/models", "It is /v1/models: give this client the base URL with /v1 at its end."),
        ("/responses/resp_1", "It is /v1/responses/resp_1: give this client the base URL with /v1 at its end."),
        ("/v1/chat/completion", 'Did you mean "/v1/chat/completions"? GET /v1 lists the usual paths.'),
        ("/v1/chat/completions/", 'Did you mean "/v1/chat/completions"?'),
        ("/v1/" + "a" * 9000, "GET /v1 lists"),
        ("/v1", "GET /v1 lists"),
        ("", "GET /v1 lists"),
        ("/v10/messages", 'Did you mean "/v1/messages"?'),
        ("//v1/messages", "It is /v1/messages: give this client the base URL without the slash at its end."),
        ("/v1//messages", "It is /v1/messages: give this client the base URL without the slash at its end."),
        ("/v1//v1/messages", "It is /v1/messages: this client adds /v1 by itself, so give it the base URL without /v1."),
        ("/openai/v1/models", 'It is /v1/models: give this client the base URL without "/openai".'),
        ("/api/v1/chat/completions", 'It is /v1/chat/completions: give this client the base URL without "/api".'),
        ("/anthropic/v1/x", "GET /v1 lists"),
        ("/api/x", "GET /api describes"),
    ],
)  # fmt: skip
def test_a_wrong_base_url_is_named(path: str, do: str) -> None:
    assert request_errors.no_such_path(path, meant_path(path)).do.startswith(do)


@pytest.mark.parametrize(
    "path",
    [
        "/api/tags",
        "/api/chat",
        "/api/generate",
        "/api/show/",
        "/api/version",
        "/api/blobs/sha256:1",
        "/api/v0/models",
    ],
)
def test_a_client_of_another_servers_api_is_told_which_one_to_choose(path: str) -> None:
    """Ollama's clients got "/api describes what there is", which is the page's own API."""
    made = request_errors.no_such_path(path, meant_path(path))
    assert made.what == "This endpoint has no API of Ollama or LM Studio."
    assert made.do == "Set the client to an OpenAI-compatible server, with the base URL that ends in /v1."


def test_a_wrong_method_has_the_right_ones() -> None:
    assert request_errors.no_such_method("GET", ("POST",)).do == "Use POST."
    assert request_errors.no_such_method("PUT", ("GET", "DELETE")).do == "Use GET or DELETE."
