from __future__ import annotations

import pytest

from sparkfleet.gateway.access.allowed_paths import MODELS, POSTED, allowed_methods, path_label


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/chat/completions", ("POST",)),
        ("/v1/responses/resp_1-a.b", ("GET", "DELETE")),
        ("/v1/responses/resp_1/cancel", ("POST",)),
        ("/v1/messages/count_tokens", ("POST",)),
        ("/v1/audio/speech", ("POST",)),
        ("/v1/rerank", ("POST",)),
        ("/v1/load_lora_adapter", ()),
        ("/v1/unload_lora_adapter", ()),
        ("/v1/chat/completions/", ()),
        ("/v1/chat/completions/x", ()),
        ("/v1/responses/a/b", ()),
        ("/v1/responses/\n", ()),
        ("/v1/completions\n", ()),
        ("/v1", ()),
        ("/metrics", ()),
    ],
)
def test_what_clients_use_passes_and_nothing_else(path: str, methods: tuple[str, ...]) -> None:
    assert allowed_methods(path) == methods


def test_deployments_add_paths() -> None:
    named = ("/v1/videos", "/v1/files/*")
    assert "POST" in allowed_methods("/v1/videos", named)
    assert not allowed_methods("/v1/videos/1", named)
    assert "DELETE" in allowed_methods("/v1/files/1/content", named)
    assert not allowed_methods("/v1/files", named)
    assert not allowed_methods("/v1/filesystem", named)


def test_known_paths_are_labels_of_metrics() -> None:
    assert all(path_label(path) == path for path in (*POSTED, MODELS))
    others = ("/v1/x", "/v1/models/tiny", "", "/v1/chat/completions/", "/v1/responses/resp_1")
    assert {path_label(path) for path in others} == {"other"}
