"""Answers that scripts of other sites may read: those of the origins that the inventory lists, and no others.

A browser sends the preflight (OPTIONS) without a key. It gives no more than the permission to send one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sparkfleet.gateway.asgi import Headers, Send

_EXPOSED = b"x-request-id, x-client-request-id, x-sparkfleet-explain, retry-after"
_METHODS = b"GET, POST, PUT, PATCH, DELETE"
_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,1000}")
_FRESH_S = b"600"
"""Seconds for which a browser keeps the permission."""


def allowed_origin(headers: Headers, origins: Collection[str]) -> bytes:
    """The origin of a request if it is one of `origins`; b"" otherwise."""
    if not origins:
        return b""
    named = [value for name, value in headers if name == b"origin"]
    return named[0] if len(named) == 1 and named[0].decode("latin-1") in origins else b""


def preflight(headers: Headers, origin: bytes) -> list[tuple[bytes, bytes]]:
    """The permission for a request that a browser is about to send from an allowed origin; [] for another OPTIONS."""
    if not origin or not any(name == b"access-control-request-method" for name, _ in headers):
        return []
    fields = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _FRESH_S)]
    wanted = next((value for name, value in headers if name == b"access-control-request-headers"), b"")
    if _NAMES.fullmatch(wanted):
        fields.append((b"access-control-allow-headers", wanted))
    return fields


def readable_by(send: Send, origin: bytes) -> Send:
    """Sends answers that scripts of an origin may read."""
    fields = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]

    async def marked(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *fields]}
        await send(message)

    return marked
