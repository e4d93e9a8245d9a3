"""Connections to engines: sends requests, and waits for the first byte of an answer.

Bodies are not decoded, in either direction; only errors are read (`engine_error`).
"""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
from aiohttp.abc import AbstractCookieJar
from aiohttp.connector import AddrInfoType
from yarl import URL

from sparkfleet.gateway.asgi import Headers
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.endpoints import Target
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER, MODEL_HEADER, PRIORITY_HEADER

CONNECT_S = 2.0
"""Time limit to open a connection. The kernel of a live engine's node accepts within milliseconds."""
IDLE_S = 2.0
"""Seconds for which an idle connection is kept: fewer than uvicorn's 5 s, so that engines rarely close one first."""
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""TCP keepalive: a request to a node without power fails after 25 s without an answer of its kernel."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FOR_ENGINES = (
    _HOP_BY_HOP
    | {
        b"accept-encoding",  # a compressed stream cannot be metered, and arrives late
        b"api-key",
        b"authorization",
        b"content-length",
        b"cookie",
        b"expect",
        b"forwarded",
        b"host",
        b"origin",  # an engine would allow every origin
        b"x-api-key",
        b"x-real-ip",
        b"x-request-id",  # replaced by the gateway's: engines use it as the name of the request, which must be unique
        MODEL_HEADER,
        PRIORITY_HEADER,
        EXPLAIN_HEADER,
    }
)
_NOT_FOR_CLIENTS = _HOP_BY_HOP | {b"date", b"server", b"set-cookie", b"x-client-request-id", b"x-request-id"}
_PRINTABLE = re.compile(rb"[\x20-\x7e\t]*")


@dataclass(frozen=True, slots=True)
class Request:
    """Request as it is sent to an engine."""

    id: str
    method: str
    target: str
    """Path and query, as the client encoded them."""
    headers: tuple[tuple[str, str], ...]
    body: RequestBody


@dataclass(slots=True)
class UpstreamAnswer:
    """An engine's answer up to its first chunk, before the client has seen any of it."""

    response: aiohttp.ClientResponse
    first: bytes

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.response.status

    @property
    def is_stream(self) -> bool:
        """True if it is a stream of server-sent events."""
        return self.response.content_type == "text/event-stream"

    @property
    def is_error(self) -> bool:
        """True if it is an error that can be read as a whole: neither a stream nor compressed."""
        packed = self.response.headers.get("content-encoding", "identity") != "identity"
        return self.status >= HTTPStatus.BAD_REQUEST and not self.is_stream and not packed

    @property
    def engine_is_failing(self) -> bool:
        """True for a status of an engine that is dying, so that another group is tried; false for a fault of the request.

        vLLM answers 500 for what was running when its workers died, then 503 for about a second until it exits
        (measured on vLLM 0.32's CPU build, two nodes, a worker killed or the link down).
        """
        return self.status in (
            HTTPStatus.INTERNAL_SERVER_ERROR,
            HTTPStatus.BAD_GATEWAY,
            HTTPStatus.SERVICE_UNAVAILABLE,
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Engine headers passed to the client."""
        raw = [(name.lower(), value) for name, value in self.response.raw_headers]
        dropped = _NOT_FOR_CLIENTS | _named_by_connection(raw)
        return [
            (name, value)
            for name, value in raw
            if name not in dropped and not name.startswith(b"access-control-")
        ]

    def close(self) -> None:
        """Closes the connection: an engine that is still generating stops."""
        self.response.close()


class EngineLost(Exception):
    """An engine was lost before the first byte of its answer.

    Args:
        delivered: True if it already had the request, which may then have killed it.
    """

    def __init__(self, why: str, *, delivered: bool) -> None:
        super().__init__(why)
        self.delivered = delivered


class Upstream:
    """Connections to engines, kept open between requests."""

    def __init__(self) -> None:
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def open(self, engine: Target, request: Request) -> UpstreamAnswer:
        """Sends the request and waits, without a time limit, for the first chunk of the answer.

        The engine may just have closed a pooled connection; a second try on a new one shows if the engine itself is gone.

        Raises:
            EngineLost: it cannot be reached, or was lost.
        """
        if self._pooled is None or self._fresh is None:
            self._pooled, self._fresh = _session(keep=True), _session(keep=False)
        try:
            return await _ask(self._pooled, engine, request)
        except EngineLost as lost:
            if not lost.delivered:
                raise
            return await _ask_again(self._fresh, engine, request)

    async def aclose(self) -> None:
        """Closes all connections."""
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()
        self._pooled = self._fresh = None


def request_headers(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Client headers passed to an engine: none that identifies the client, none about the connection."""
    dropped = _NOT_FOR_ENGINES | _named_by_connection(headers)
    return tuple(
        (name.decode("ascii"), value.decode("ascii"))
        for name, value in headers
        if name not in dropped
        and not name.startswith(b"x-forwarded-")
        and _PRINTABLE.fullmatch(name)
        and _PRINTABLE.fullmatch(value)
    )


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    lines = (value for name, value in headers if name == b"connection")
    return frozenset(token.strip().lower() for line in lines for token in line.split(b","))


async def _ask(session: aiohttp.ClientSession, engine: Target, request: Request) -> UpstreamAnswer:
    headers = [*request.headers, ("x-request-id", request.id), ("accept-encoding", "identity")]
    if engine.token:
        headers.append(("authorization", f"Bearer {engine.token}"))
    try:
        response = await session.request(
            request.method,
            URL(engine.url + request.target, encoded=True),
            headers=headers,
            data=request.body.payload(),
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, TimeoutError) as error:
        raise EngineLost(str(error) or "no connection in time", delivered=False) from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineLost(str(error) or type(error).__name__, delivered=True) from error
    if response.status == HTTPStatus.UNAUTHORIZED:
        # The engine refused the gateway's token, not the client's key: another engine has taken the port.
        response.close()
        raise EngineLost("it does not accept the gateway's token", delivered=False)
    return await _first_chunk(response)


async def _ask_again(session: aiohttp.ClientSession, engine: Target, request: Request) -> UpstreamAnswer:
    try:
        return await _ask(session, engine, request)
    except EngineLost as lost:
        raise EngineLost(str(lost), delivered=True) from lost


async def _first_chunk(response: aiohttp.ClientResponse) -> UpstreamAnswer:
    try:
        return UpstreamAnswer(response, await response.content.readany())
    except (aiohttp.ClientError, OSError) as error:
        response.close()
        raise EngineLost(str(error) or type(error).__name__, delivered=True) from error
    except asyncio.CancelledError:
        response.close()
        raise


def _session(*, keep: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,
        socket_factory=_socket,
        **({"keepalive_timeout": IDLE_S} if keep else {"force_close": True}),
    )
    return aiohttp.ClientSession(
        connector=connector,
        # No time limit on the answer: the prefill of a long context takes minutes on a Spark, without a byte.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=None),
        auto_decompress=False,
        cookie_jar=_no_cookies(),
        skip_auto_headers=("user-agent", "accept", "content-type"),
    )


def _no_cookies() -> AbstractCookieJar:
    return aiohttp.DummyCookieJar()


def _socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setblocking(False)
    watch_peer(made, KEEPALIVE)
    return made


def watch_peer(connection: socket.socket, settings: tuple[tuple[str, int], ...]) -> None:
    """Sets TCP keepalive, so that the kernel notices a vanished peer. `settings` in s, s, and probes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in settings:
        option = getattr(socket, name, None)  # Linux has all of them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
