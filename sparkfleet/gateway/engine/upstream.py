"""Sends requests to engines, and waits for the first byte of an answer.

Bodies are not decoded, in either direction; only errors are read (`engine_error`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from sparkfleet.gateway.asgi import Headers
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.engine.connection import EngineConnection, EngineConnectionLost, Sink
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.engine_pool import EngineLost, EnginePool
from sparkfleet.gateway.engine.external import (
    ANSWER_HEADERS,
    PASSED_HEADERS,
    KeyUnusable,
    read_key,
    target_of,
)
from sparkfleet.gateway.engine.own_address import REFERENCES, without_own_address
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER, MODEL_HEADER, PRIORITY_HEADER
from sparkfleet.gateway.routing_table import ExternalAddress

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
        b"x-conversation-id",  # by it llama.cpp would generate on without its client, and end another's stream of this id
        b"x-real-ip",
        b"x-request-id",  # replaced by the gateway's: engines use it as the name of the request, which must be unique
        MODEL_HEADER,
        PRIORITY_HEADER,
        EXPLAIN_HEADER,
    }
)
_NOT_FOR_CLIENTS = _HOP_BY_HOP | {b"date", b"server", b"set-cookie", b"x-client-request-id", b"x-request-id"}
_NONE = frozenset[bytes]()
_WITH_BODY = ("POST", "PUT", "PATCH")
_FORWARDED = b"x-forwarded-"
_PRINTABLE = re.compile(rb"[\x20-\x7e\t]*")
_FAILING = frozenset((500, 502, 503))


@dataclass(slots=True)  # not frozen: that would take longer for each request
class EngineRequest:
    """Request as it is sent to an engine. Nothing of it changes."""

    id: str
    method: str
    target: str
    """Path and query, as the client encoded them."""
    headers: Headers
    body: RequestBody
    model_span: tuple[int, int] | None = None
    """Begin and end of the model's name in the body, quotes included; None if it was not looked for."""


@dataclass(slots=True)
class UpstreamAnswer:
    """An engine's answer up to its first chunk, before the client has seen any of it."""

    connection: EngineConnection
    first: bytes
    _pool: EnginePool
    url: str
    """The engine's, as `EngineEndpoint.url`."""
    is_external: bool = False
    """True if it comes from outside the fleet."""
    deliveries: int = 1
    """Times that the engine had the request: two if a kept connection was lost first."""
    error: bytes | None = None
    """Its body, if it is an error that was read."""
    unfit: str = ""
    """Lack of the engine for which it refused the request (`engine_error.Unfitness`)."""
    _is_open: bool = True
    status: int = field(init=False)
    """HTTP status."""
    is_stream: bool = field(init=False)
    """True if it is a stream of server-sent events."""
    is_page: bool = field(init=False)
    """True if it is a page for people in place of an API's answer."""

    def __post_init__(self) -> None:
        self.status = self.connection.status
        media = self.connection.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self.is_stream = media == b"text/event-stream"
        self.is_page = media == b"text/html"

    @property
    def is_error(self) -> bool:
        """True if it is an error that can be read as a whole: neither a stream nor compressed."""
        if self.status < 400 or self.is_stream:
            return False
        return self.connection.fields.get(b"content-encoding", b"") in (b"", b"identity")

    @property
    def engine_is_failing(self) -> bool:
        """True for a status of an engine that is dying, so that another group is tried; false for a fault of the request.

        vLLM answers 500 for what was running when its workers died, then 503 for about a second until it exits
        (measured on vLLM 0.32's CPU build, two nodes, a worker killed or the link down).
        """
        if self.is_external and (self.status >= 500 or self.status == 429):
            return True
        return self.status in _FAILING

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Engine headers passed to the client."""
        raw = self.connection.headers
        if self.is_external:
            return [(name, value) for name, value in raw if name in ANSWER_HEADERS]
        named = _named_by_connection(raw)
        return [
            (name, value if name not in REFERENCES else without_own_address(value, self.url))
            for name, value in raw
            if name not in _NOT_FOR_CLIENTS and name not in named and not name.startswith(b"access-control-")
        ]

    async def readany(self) -> bytes:
        """The next bytes of the body; b"" at its end. Raises EngineConnectionLost if the engine was lost in the middle."""
        return await self.connection.readany()

    async def pump(self, sink: Sink, drained: Callable[[], Awaitable[None]]) -> None:
        """Passes the rest of the body to `sink`; see `EngineConnection.pump`."""
        await self.connection.pump(sink, drained)

    def stop(self) -> None:
        """Closes its connection, so that the engine stops generating, while `pump` still runs on it: kept, it could
        carry the next request by then."""
        self.connection.close()

    def close(self) -> None:
        """Ends it: the connection is kept after a whole answer, else closed, so that the engine stops generating."""
        if self._is_open:
            self._is_open = False
            self._pool.give_back(self.connection)


class Upstream:
    """Requests to engines, on connections that are kept between them."""

    def __init__(self) -> None:
        self._pool = EnginePool()
        self.trouble: dict[str, str] = {}
        """The reason of the last failure of an endpoint outside the fleet, by URL, until it answers."""

    async def open(self, engine: EngineEndpoint, request: EngineRequest, *, most: int = 2) -> UpstreamAnswer:
        """Sends the request and waits, without a time limit, for the first chunk of the answer.

        The engine may just have closed a kept connection; a second try on a new one shows if the engine itself is gone.
        A request that was lost on a new one is not sent to the same engine again: it may be the cause.

        Args:
            most: times that it may be sent; 1: there is no second try.

        Raises:
            EngineLost: it cannot be reached, or was lost.
        """
        if engine.external is None:
            return await self._open(engine, request, most)
        try:
            answer = await self._open(engine, request, most)
        except EngineLost as lost:
            self.trouble[engine.url] = str(lost)
            raise
        if answer.engine_is_failing:
            self.trouble[engine.url] = f"it answered {answer.status}"
        else:
            self.trouble.pop(engine.url, None)
        return answer

    async def _open(self, engine: EngineEndpoint, request: EngineRequest, most: int) -> UpstreamAnswer:
        head, body = _message(engine, request)
        is_head = request.method == "HEAD"
        connection = await self._pool.take(engine.url, fresh=False)
        was_kept = connection.has_served
        try:
            return await self._ask(connection, engine, head, body, is_head=is_head)
        except EngineConnectionLost as lost:
            if not was_kept or most < 2:
                raise EngineLost(str(lost), deliveries=1) from lost
        try:
            connection = await self._pool.take(engine.url, fresh=True)
            answer = await self._ask(connection, engine, head, body, is_head=is_head)
        except EngineConnectionLost as lost:
            raise EngineLost(str(lost), deliveries=2) from lost
        except EngineLost as lost:
            # It had the request on the kept one, and may have died of it.
            raise EngineLost(str(lost), deliveries=1) from lost
        answer.deliveries = 2
        return answer

    async def aclose(self) -> None:
        """Closes all connections."""
        self._pool.close()

    async def _ask(
        self,
        connection: EngineConnection,
        engine: EngineEndpoint,
        head: bytes,
        body: RequestBody,
        *,
        is_head: bool,
    ) -> UpstreamAnswer:
        try:
            await connection.ask(head, body, is_head=is_head)
            if engine.external is not None and connection.status in _REFUSED_OUTSIDE:
                raise EngineLost(_refused(engine.external, connection.status), deliveries=0)
            if connection.status == 401:
                # The engine refused the gateway's token, not the client's key: another engine has taken the port, or a
                # custom workload was started with a key.
                raise EngineLost(
                    "it answered 401 (it does not accept the gateway's token, or requires a key of its own)",
                    deliveries=0,
                )
            first = await connection.readany()
            return UpstreamAnswer(connection, first, self._pool, engine.url, engine.external is not None)
        except BaseException:
            self._pool.give_back(connection)
            raise


_REFUSED_OUTSIDE = frozenset((*range(300, 400), 401, 402, 403, 404, 405))
"""Statuses by which an endpoint outside the fleet refuses the owner, not the request of a client."""


def _refused(address: ExternalAddress, status: int) -> str:
    if status < 400:
        return f"it answered {status}: it redirects, which is not followed; list the URL at which it answers"
    if status in (404, 405):
        return f"it answered {status}: it has no model {address.model}, or nothing at this URL"
    return f"it answered {status}: it does not accept the key" + (
        f" in {address.key_file}" if address.key_file else ", and the deployment has no key_file"
    )


def _message(engine: EngineEndpoint, request: EngineRequest) -> tuple[bytes, RequestBody]:
    """The head and the body of a request to this engine."""
    if engine.external is None:
        head = _head(engine.url, request.target, request.headers, engine.token, request)
        return head, request.body
    if request.model_span is None:
        raise EngineLost("the place of the model's name in the request is not known", deliveries=0)
    try:
        key = read_key(engine.external)
    except KeyUnusable as error:
        raise EngineLost(str(error), deliveries=0) from None
    body = request.body.replaced((*request.model_span, json.dumps(engine.external.model).encode()))
    headers = [one for one in request.headers if one[0] in PASSED_HEADERS]
    target = target_of(engine.external, request.target)
    return _head(engine.url, target, headers, key, replace(request, body=body)), body


def _head(url: str, target: str, headers: Headers, token: str, request: EngineRequest) -> bytes:
    own = (
        f"{request.method} {target} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
        f"x-request-id: {request.id}\r\naccept-encoding: identity\r\n"
    )
    if token:
        own += f"authorization: Bearer {token}\r\n"
    if request.body.size or request.method in _WITH_BODY:
        own += f"content-length: {request.body.size}\r\n"
    return own.encode("ascii") + b"\r\n".join([*map(b": ".join, headers), b"", b""])


def request_headers(headers: Headers) -> Headers:
    """Client headers passed to an engine: none that identifies the client, none about the connection."""
    named = _named_by_connection(headers)
    return [
        one
        for one in headers
        if one[0] not in _NOT_FOR_ENGINES
        and one[0] not in named
        and not one[0].startswith(_FORWARDED)
        and _PRINTABLE.fullmatch(b"".join(one))
    ]


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    lines = b",".join([value for name, value in headers if name == b"connection"])
    return frozenset([token.strip().lower() for token in lines.split(b",")]) if lines else _NONE
