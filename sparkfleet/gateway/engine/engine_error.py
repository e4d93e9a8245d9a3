"""Errors of engines, in the form of the client's API.

vLLM's have the form of OpenAI's. SGLang and TensorRT-LLM put the same fields side by side (`{"object": "error", "message":
…}`, the latter also `{"error": "…"}`), FastAPI returns `{"detail": …}`, and a server that fails a line of text. A client
that reads `error.message` would find nothing in those.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Any, Literal

from sparkfleet.gateway.engine.connection import EngineConnectionLost
from sparkfleet.gateway.engine.upstream import UpstreamAnswer
from sparkfleet.gateway.errors.api_error import PROMPT_TOO_LONG, Dialect, error_json
from sparkfleet.gateway.policy.unusable_answers import names_model

LONGEST = 1 << 20
"""Bytes of an error that are read: some repeat the request that they refuse."""
LONGEST_TEXT = 4000
"""Characters of an error without JSON that are passed on."""
READ_S = 10.0
"""Time limit for an error's body: a failing server may never end it."""
NOT_FOUND = 404
NOT_IMPLEMENTED = 501
Unfitness = Literal["path", "context", "audio", "model"]
"""Lack of an engine for which it refuses a request that another group may serve."""
_TOO_LONG = re.compile(
    r"(?:maximum|available) context (?:length|size)|model's context length|maximum (?:model|input|sequence) length"
    r"|max_(?:model_len|seq_len|num_tokens)|context_length_exceeded|exceed_context_size"
)
"""vLLM 0.32, SGLang, TensorRT-LLM, llama.cpp; of llama.cpp and OpenAI also in `code` or `type`."""
_NO_SOUND = re.compile(r"audio|not a multimodal model|multimodal inputs?")
_OF_LENGTH = (400, 413)
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


def unfitness(body: bytes, status: int, *, has_audio: bool, model: str = "") -> Unfitness | None:
    """The lack of the engine for which it refused a request; None if the fault is the request's own.

    Args:
        body, status: the engine's error.
        has_audio: the request has sound.
        model: the name that the engine was asked for; "" if the client has chosen it.
    """
    if lacks_path(body, status):
        return "path"
    fields = _fields(body)
    parts = (
        *(fields.get(name) for name in ("message", "code", "type", "detail")),
        _parsed(body).get("error"),
    )
    said = " ".join(map(_text, parts))
    if status == NOT_FOUND:
        return "model" if model and names_model(said, model) else None
    if status not in _OF_LENGTH:
        return None
    if _TOO_LONG.search(said):
        return "context"
    return "audio" if has_audio and _NO_SOUND.search(said.lower()) else None


def with_context(body: bytes, dialect: Dialect, largest: str) -> bytes:
    """An engine's error about a prompt that is too long, in the words that clients of `dialect` recognise.

    Args:
        body: it, in the form of `dialect`.
        largest: a sentence with the largest context of the model; "" if it is not known.
    """
    document = json.loads(body)
    words = document["error"]["message"]
    is_known = dialect == "openai" or PROMPT_TOO_LONG.lower() in words.lower()
    if is_known and not largest:
        return body
    parts = ("" if is_known else f"{PROMPT_TOO_LONG}.", words, largest)
    document["error"]["message"] = " ".join(filter(None, parts))
    return json.dumps(document).encode()


def lacks_path(body: bytes, status: int) -> bool:
    """True for the error of an engine that does not have the path of the request, rather than of the request itself.

    vLLM serves the paths of a task only if its model has the task.
    """
    inner, fields = _parsed(body).get("error"), _fields(body)
    said = _text(fields.get("message")) or _text(inner) or _text(fields.get("detail"))
    return status == NOT_IMPLEMENTED or _OF_FRAMEWORKS.get(status) == said


def _fields(body: bytes) -> dict[str, Any]:
    parsed = _parsed(body)
    inner = parsed.get("error")
    return inner if isinstance(inner, dict) else parsed


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
