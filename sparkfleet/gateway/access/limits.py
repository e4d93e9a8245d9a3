"""Limits on the size and the pace of a client's request."""

from __future__ import annotations

import asyncio
import re
from itertools import chain

from sparkfleet.gateway.asgi import ClientGone, DirectWriter, Fields, Headers, Receive
from sparkfleet.gateway.body.body_budget import HeldBody
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.errors.request_errors import (
    bad_request,
    encoded_body,
    headers_too_large,
    no_such_path,
    too_large,
    too_slow,
)
from sparkfleet.values import Value

_PATH = re.compile(rb"/v1(?:/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*)+")
_QUERY = re.compile(rb"[\x21-\x7e]*")
_PER_HEADER = 32
"""Bytes that a header counts beside its name and value, as in HTTP/2 (RFC 9113, 6.5.2)."""


class RequestLimits(Value):
    """Limits of one request, checked before an engine is involved."""

    body_bytes: int = 32 << 20
    """Longest body, bytes: enough for several images in base64, or an hour of compressed speech."""
    body_s: float = 60.0
    """Seconds from the first wait for the body to its last byte, beside those of `body_rate`."""
    body_rate: float = 250e3
    """Bytes that have arrived, for each of which a body has another second: a client with an uplink of 2 Mbit/s sends the
    longest body that `max_body_mb` allows."""
    header_count: int = 100
    header_bytes: int = 32 << 10


def check_headers(headers: Headers, limits: RequestLimits) -> None:
    """Refuses headers that are too large. Raises ApiError (431)."""
    if len(headers) > limits.header_count:
        raise headers_too_large()
    if len(b"".join(chain.from_iterable(headers))) + _PER_HEADER * len(headers) > limits.header_bytes:
        raise headers_too_large()


def check_target(raw_path: bytes, query: bytes) -> None:
    """Refuses a path that the engine could read differently from the gateway, such as `/v1/../metrics`.

    Raises:
        ApiError: 404 for the path, 400 for the query.
    """
    if not _PATH.fullmatch(raw_path):
        raise no_such_path(raw_path.decode("latin-1"))
    if not _QUERY.fullmatch(query):
        raise bad_request("The query string has characters that must be percent-encoded.")


def check_encoding(fields: Fields) -> None:
    """Refuses a compressed body. Raises ApiError (415)."""
    encoding = fields.get(b"content-encoding", b"")
    if encoding.strip().lower() not in (b"identity", b""):
        raise encoded_body(encoding.decode("latin-1"))


async def read_body(
    fields: Fields,
    receive: Receive,
    limits: RequestLimits,
    held: HeldBody,
    direct: DirectWriter | None = None,
) -> RequestBody:
    """The whole body. One whose content-length is too long is refused before a byte of it is read.

    Args:
        held: counts its bytes, and refuses what does not fit.
        direct: its connection, which has a short body already: no clock is started for that; None: it is waited for.

    Raises:
        ApiError: 413, 408 if it arrives too slowly, 429 or 503 if too many bytes are held.
        ClientGone: the client hung up.
    """
    declared = _declared_length(fields)
    if declared > limits.body_bytes:
        raise too_large(limits.body_bytes)
    if direct is not None and (arrived := direct.arrived()) is not None:
        return _add(RequestBody(), arrived, limits.body_bytes, held)
    held.announce(declared)
    body, began = RequestBody(), asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(limits.body_s) as clock:
            while await _collect(body, receive, limits.body_bytes, held):
                clock.reschedule(began + _allowed_s(body, limits))
            return body
    except TimeoutError:
        raise too_slow(body.size, _allowed_s(body, limits)) from None


def has_body(headers: Headers) -> bool:
    """True if the request announces a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in headers
    )


def _declared_length(fields: Fields) -> int:
    length = fields.get(b"content-length", b"0")
    # At most 18 digits: longer ones are too long anyway, and int() refuses thousands of them.
    if not length.isdigit():
        raise bad_request("The content-length is not a number.")
    return int(length[:18])


def _allowed_s(body: RequestBody, limits: RequestLimits) -> float:
    """Seconds that a body of which this much has arrived may have taken."""
    return limits.body_s + body.size / limits.body_rate


async def _collect(body: RequestBody, receive: Receive, limit: int, held: HeldBody) -> bool:
    """Adds the next part of a body. True if there is more of it."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    _add(body, message.get("body", b""), limit, held)
    return bool(message.get("more_body", False))


def _add(body: RequestBody, chunk: bytes, limit: int, held: HeldBody) -> RequestBody:
    if body.size + len(chunk) > limit:
        raise too_large(limit)
    held.add(len(chunk))
    body.add(chunk)
    return body
