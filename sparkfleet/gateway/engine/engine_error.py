"""Errors of engines, in the form of the client's API.

vLLM's have the form of OpenAI's. SGLang and TensorRT-LLM put the same fields side by side (`{"object": "error", "message":
…}`, the latter also `{"error": "…"}`), FastAPI returns `{"detail": …}`, and a server that fails a line of text. A client
that reads `error.message` would find nothing in those.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from sparkfleet.gateway.api_errors import Dialect, error_json
from sparkfleet.gateway.engine.connection import EngineConnectionLost
from sparkfleet.gateway.engine.upstream import UpstreamAnswer

LONGEST = 1 << 20
"""Bytes of an error that are read: some repeat the request that they refuse."""
LONGEST_TEXT = 4000
"""Characters of an error without JSON that are passed on."""
READ_S = 10.0
"""Time limit for an error's body: a failing server may never end it."""
NOT_IMPLEMENTED = 501
_OF_FRAMEWORKS = {404: "Not Found", 405: "Method Not Allowed"}
"""Starlette's words for a path, or a method, that a server does not have."""


async def read_error(answer: UpstreamAnswer) -> bytes:
    """The body of an engine's error, as far as it arrives."""
    body = chunk = answer.first
    with suppress(EngineConnectionLost, TimeoutError):
        async with asyncio.timeout(READ_S):
            while chunk and len(body) < LONGEST:
                chunk = await answer.readany()
                body += chunk
    return body


def in_dialect(body: bytes, status: int, dialect: Dialect) -> bytes:
    """An engine's error in the form of `dialect`; unchanged if it already has it."""
    parsed = _parsed(body)
    inner = parsed.get("error")
    if isinstance(inner, dict) and _text(inner.get("message")) and _text(inner.get("type")):
        return body
    fields = inner if isinstance(inner, dict) else parsed
    message = _text(fields.get("message")) or _text(inner) or _text(fields.get("detail"))
    code = fields.get("code")
    return error_json(
        message or body[:LONGEST].decode("utf-8", "replace").strip()[:LONGEST_TEXT] or _nothing(status),
        status,
        code=code if isinstance(code, str | int) else "engine_error",
        param=_text(fields.get("param")) or None,
        kind=_text(fields.get("type")),
        dialect=dialect,
    )


def lacks_path(body: bytes, status: int) -> bool:
    """True for the error of an engine that does not have the path of the request, rather than of the request itself.

    vLLM serves the paths of a task only if its model has the task.
    """
    parsed = _parsed(body)
    inner = parsed.get("error")
    fields = inner if isinstance(inner, dict) else parsed
    said = _text(fields.get("message")) or _text(inner) or _text(fields.get("detail"))
    return status == NOT_IMPLEMENTED or _OF_FRAMEWORKS.get(status) == said


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _nothing(status: int) -> str:
    return f"The engine returned {status} without a reason."
