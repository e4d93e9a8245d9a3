"""Errors of requests whatever their model."""

import pytest

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
