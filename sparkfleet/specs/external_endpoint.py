"""`external` of a deployment: an endpoint outside the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from sparkfleet.specs.fields import (
    AbsolutePath,
    Concurrency,
    Context,
    EndpointUrl,
    ForeignModel,
    Problem,
    Spec,
)


class ExternalEndpoint(Spec):
    """An endpoint outside the fleet that speaks OpenAI's API: llama.cpp, Ollama, another server, a cloud."""

    url: EndpointUrl
    """Its base URL, as OpenAI's clients have it: "https://api.example.org/v1", "http://192.168.1.20:11434/v1". Without a
    path: /v1. Plain HTTP only in the owner's network: a private address, localhost, a name without a dot or under .local,
    .lan, .internal or .home.arpa."""
    model: ForeignModel
    """The model's name there."""
    key_file: AbsolutePath | None = None
    """File with its API key, on each node with a gateway, readable for its owner alone. Left out: none is sent."""
    when: Literal["unavailable", "busy"] = "unavailable"
    """`unavailable`: it gets requests that no ready group can serve; `busy`: also those that would have to wait for one."""
    context: Context | None = None
    """Longest prompt + completion, tokens. Left out: not known."""
    concurrency: Concurrency | None = None
    """Requests that each gateway sends at once. Left out: any number."""
    vision: bool | None = None
    """If it takes images. Left out: not known."""
    tools: bool | None = None
    """If it takes tools. Left out: not known."""

    def _problems(self) -> Iterator[Problem]:
        parts = urlsplit(self.url)
        try:
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        if not host:
            yield Problem(
                ("url",), "no usable host or port. Expected https://HOST/v1 or http://HOST:PORT/v1."
            )
        elif parts.scheme == "http" and not _is_near(host):
            yield Problem(
                ("url",),
                f"http to {host}, which is not in the owner's network: prompts and the key would be readable on the way."
                " Expected https, or http to a private address.",
            )


_NEAR = (".local", ".lan", ".internal", ".home.arpa", ".localhost")
"""Endings of names that no public name has."""


def _is_near(host: str) -> bool:
    """True for a host of the owner's network, by its address or name alone."""
    try:
        found = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_NEAR)
    return found.is_private or found.is_loopback or found.is_link_local
