"""Answers that the gateway gives itself: their headers, and refusals in the form of the client's API."""

from __future__ import annotations

import json

from sparkfleet.gateway.access.limits import has_body
from sparkfleet.gateway.asgi import Receive, Send, respond, respond_early
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER

JSON = (b"content-type", b"application/json")
"""Header of a JSON body."""


def id_headers(ctx: RequestContext) -> list[tuple[bytes, bytes]]:
    """Headers that name a request, and the reason for its group if its client asked for that."""
    headers = [(b"x-request-id", ctx.id.encode())]
    if ctx.client_id:
        headers.append((b"x-client-request-id", ctx.client_id.encode()))
    if ctx.explanation:
        headers.append((EXPLAIN_HEADER, json.dumps(ctx.explanation).encode()))
    return headers


async def respond_json(ctx: RequestContext, body: bytes, send: Send) -> None:
    """Answers a request with a document."""
    ctx.status = 200
    await respond(send, 200, [JSON, *id_headers(ctx)], body, head=ctx.head)


async def refuse(ctx: RequestContext, refusal: ApiError, receive: Receive, send: Send) -> None:
    """Answers a request with an error, also while its body still arrives."""
    ctx.status, ctx.kind = refusal.status, refusal.kind
    headers = [JSON, *id_headers(ctx), *refusal.headers]
    body = refusal.body(ctx.dialect)
    if ctx.body_read or not has_body(ctx.headers):
        await respond(send, refusal.status, headers, body, head=ctx.head)
    else:
        await respond_early(receive, send, refusal.status, headers, body)


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Refuses a websocket."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": "websockets are not served here"})
