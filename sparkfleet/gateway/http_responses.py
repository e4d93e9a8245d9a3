"""Answers that the gateway gives itself: their headers, and refusals in the form of the client's API."""

from __future__ import annotations

import json

from sparkfleet.gateway.access.limits import has_body
from sparkfleet.gateway.api_errors import ApiError
from sparkfleet.gateway.asgi import Receive, Send, respond, respond_early
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER

JSON = (b"content-type", b"application/json")
"""Header of a JSON body."""


def id_headers(exchange: RequestContext) -> list[tuple[bytes, bytes]]:
    """Headers that name a request, and the reason for its group if its client asked for that."""
    headers = [(b"x-request-id", exchange.id.encode())]
    if exchange.client_id:
        headers.append((b"x-client-request-id", exchange.client_id.encode()))
    if exchange.explanation:
        headers.append((EXPLAIN_HEADER, json.dumps(exchange.explanation).encode()))
    return headers


async def respond_json(exchange: RequestContext, body: bytes, send: Send) -> None:
    """Answers a request with a document."""
    exchange.status = 200
    await respond(send, 200, [JSON, *id_headers(exchange)], body, head=exchange.head)


async def refuse(exchange: RequestContext, refusal: ApiError, receive: Receive, send: Send) -> None:
    """Answers a request with an error, also while its body still arrives."""
    exchange.status, exchange.kind = refusal.status, refusal.kind
    headers = [JSON, *id_headers(exchange), *refusal.headers]
    body = refusal.body(exchange.dialect)
    if exchange.body_read or not has_body(exchange.headers):
        await respond(send, refusal.status, headers, body, head=exchange.head)
    else:
        await respond_early(receive, send, refusal.status, headers, body)


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Refuses a websocket."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": "websockets are not served here"})
