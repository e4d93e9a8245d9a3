"""An engine's own address in a redirect never reaches a client."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.engine.own_address import without_own_address

URL = "http://192.168.100.10:5005"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://192.168.100.10:5005/v1/chat/completions/", "/v1/chat/completions/"),
        ("http://192.168.100.10:8080/files?a=b#c", "/files?a=b#c"),
        ("http://127.0.0.1:18711/v1/x", "/v1/x"),
        ("https://localhost/v1/x", "/v1/x"),
        ("http://0.0.0.0:5005", "/"),
        ("http://[::1]:5005/x", "/x"),
        ("//127.0.0.1:5005/x", "/x"),
        ("http://127.0.0.1:5005//elsewhere.example/x", "/elsewhere.example/x"),
        ("/v1/chat/completions/", "/v1/chat/completions/"),
        ("completions/?a=http://127.0.0.1/", "completions/?a=http://127.0.0.1/"),
        ("https://files.example/x?sig=1", "https://files.example/x?sig=1"),
        ("http://192.168.1.5/nas", "http://192.168.1.5/nas"),
        ("http://[::1/x", "http://[::1/x"),
        ("", ""),
    ],
)
def test_a_reference_to_the_engine_itself_has_no_host(given: str, shown: str) -> None:
    assert without_own_address(given.encode(), URL) == shown.encode()


def test_a_reference_that_is_not_ascii_is_not_changed() -> None:
    assert without_own_address("http://127.0.0.1/é".encode(), URL) == "http://127.0.0.1/é".encode()
