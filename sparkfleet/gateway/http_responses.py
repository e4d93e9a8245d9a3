"""Answers that the gateway gives itself: their headers, and refusals in the form of the client's API."""

from __future__ import annotations

import json

from sparkfleet.gateway.access.limits import has_body
from sparkfleet.gateway.accounting.request_record import RequestRecord
from sparkfleet.gateway.asgi import Receive, Send, respond, respond_early
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER

JSON = (b"content-type", b"application/json")
"""Header of a JSON body."""


def id_headers(record: RequestRecord) -> list[tuple[bytes, bytes]]:
    """Headers that name a request, and the reason for its group if its client asked for that."""
    headers = [(b"x-request-id", record.request.id.encode())]
    if record.request.client_id:
        headers.append((b"x-client-request-id", record.request.client_id.encode()))
    if record.explanation is not None:
        headers.append((EXPLAIN_HEADER, json.dumps(record.explanation).encode()))
    return headers


async def respond_json(record: RequestRecord, body: bytes, send: Send) -> None:
    """Answers a request with a document."""
    record.status = 200
    await respond(send, 200, [JSON, *id_headers(record)], body, head=record.request.is_head)


async def refuse(record: RequestRecord, refusal: ApiError, receive: Receive, send: Send) -> None:
    """Answers a request with an error, also while its body still arrives."""
    record.status, record.kind = refusal.status, refusal.kind
    headers = [JSON, *id_headers(record), *refusal.headers]
    body = refusal.body(record.request.dialect)
    if record.body_read or not has_body(record.request.headers):
        await respond(send, refusal.status, headers, body, head=record.request.is_head)
    else:
        await respond_early(receive, send, refusal.status, headers, body)


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Refuses a websocket."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": "websockets are not served here"})
