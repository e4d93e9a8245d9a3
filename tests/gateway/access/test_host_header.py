"""The machine that a Host header names."""

from __future__ import annotations

import pytest

from sparkfleet.gateway.access.host_header import address_in


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "localhost"),
        ("localhost:8000", "localhost"),
        ("127.0.0.1:8265", "127.0.0.1"),
        ("[::1]:8000", "::1"),
        ("192.168.1.9", "192.168.1.9"),
        ("spark.example.org", None),
        ("localhost.example.org:8000", None),
        ("127.0.0.1.example.org", None),
        ("::1", None),
        ("", None),
    ],
)
def test_only_addresses_and_localhost_name_a_machine(host: str, address: str | None) -> None:
    assert address_in(host) == address
