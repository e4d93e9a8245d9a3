"""Errors of requests whatever their model: keys, paths, sizes and limits, and the gateway's own states."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sparkfleet.gateway.errors.api_error import ApiError, later, shortened


def unauthorised(*, given: bool) -> ApiError:
    """401: no key, or an unknown one."""
    return ApiError(
        "This API key is unknown." if given else "The request has no API key.",
        do='Send "Authorization: Bearer sk-sf-…". `sparkfleet keys create NAME` creates a key.',
        status=401,
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def expired(key_name: str) -> ApiError:
    """401: the key was valid until its expiry."""
    return ApiError(
        f'The key "{key_name}" has expired.',
        do="`sparkfleet keys create` makes a new one.",
        status=401,
        code="expired_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def forbidden(model: str, key_name: str) -> ApiError:
    """403: a valid key without access to this model."""
    return ApiError(
        f'The key "{key_name}" may not use the model "{shortened(model)}".',
        do='The deployment\'s "keys" list the keys with access.',
        status=403,
        code="model_not_allowed",
        param="model",
    )


def admin_only(key_name: str) -> ApiError:
    """403: a key for the page's API is used for a model."""
    return ApiError(
        f'The key "{key_name}" is for administration only and may not send requests to models.',
        do="Use another key; `sparkfleet keys create NAME` creates one.",
        status=403,
        code="key_without_inference",
    )


def no_table() -> ApiError:
    """503: the gateway has just started and has no routing table yet."""
    return later("The gateway is starting.", 1, code="starting", kind="not_ready")


def gateway_away() -> ApiError:
    """503, of an entry: no gateway accepts connections."""
    return later("The gateway on the head does not answer.", 5, code="gateway_away")


def draining() -> ApiError:
    """503: this gateway replica is stopping; another one answers on the same port."""
    return later("This gateway is shutting down.", 1, code="draining", headers=((b"connection", b"close"),))


def bad_request(what: str, *, do: str = "", param: str | None = None, code: str = "bad_request") -> ApiError:
    """400: the request is not valid."""
    return ApiError(what, do=do, status=400, code=code, param=param)


def too_large(limit: int) -> ApiError:
    """413: the body is longer than `limit` bytes."""
    return ApiError(f"The request body is larger than {limit} bytes.", status=413, code="request_too_large")


def budget_full() -> ApiError:
    """503: the bodies of all clients take as much memory as they may."""
    return later(
        "The gateway holds as many bytes of requests as it may.", 2, code="gateway_busy", kind="body_budget"
    )


def key_budget_full() -> ApiError:
    """429: the bodies of one key take as much memory as they may."""
    return limited("The requests of this key take as much of the gateway's memory as one key may.", 2)


def waiting_budget_full() -> ApiError:
    """503: the bodies of requests that wait for starts take as much memory as they may."""
    return later(
        "Requests that wait for models to start hold as many bytes as they may.",
        10,
        code="gateway_busy",
        kind="body_budget",
    )


def too_many_connections() -> ApiError:
    """503: this gateway, or this client's address, has as many connections as it may."""
    return later("There are too many connections.", 2, code="too_many_connections", kind="connections")


def too_many_sent_ahead(most: int, size: int) -> ApiError:
    """429: a client has sent too much before the answer to an earlier request. The connection is closed.

    Args:
        most: requests that it may send ahead.
        size: bytes of them.
    """
    return ApiError(
        f"More than {most} requests, or {size >> 10} KiB of them, were sent on this connection before an earlier one was"
        " answered.",
        do="Send what was not answered again: on further connections, or after the answers.",
        status=429,
        code="too_many_sent_ahead",
    )


def no_files() -> ApiError:
    """503: this process, or the machine, may open no further file, so there is no connection to an engine."""
    return later("The gateway has no file left for a connection to an engine.", 5, code="no_files")


def limited(what: str, seconds: int) -> ApiError:
    """429: a limit of the key. `seconds`: when it admits the request again."""
    return ApiError(
        what,
        do=f"Try again in {seconds} s.",
        status=429,
        code="rate_limit_exceeded",
        headers=((b"retry-after", str(seconds).encode()),),
    )


def encoded_body(encoding: str) -> ApiError:
    """415: a compressed body. A few kilobytes may unpack to gigabytes, and engines do not unpack any."""
    return ApiError(
        f'The content-encoding "{shortened(encoding)}" is not supported.',
        do="Send the body as it is, without compression.",
        status=415,
        code="unsupported_encoding",
        headers=((b"accept-encoding", b"identity"),),
    )


def headers_too_large() -> ApiError:
    """431: more headers than a client needs."""
    return ApiError("The request headers are too large.", status=431, code="headers_too_large")


def too_slow(size: int, seconds: float) -> ApiError:
    """408: the body did not arrive in time. The connection is closed: the rest of it may still come.

    Args:
        size: bytes that have arrived.
        seconds: in this time, which a faster client would have had more of.
    """
    return ApiError(
        f"The request body arrived too slowly: {size:,} bytes of it in {seconds:.0f} s.",
        status=408,
        code="request_timeout",
        kind="too_slow",
        headers=((b"connection", b"close"),),
    )


class _Absent(NamedTuple):
    """A part of OpenAI's or Anthropic's API that no model of a fleet can have: the fact, and what to do instead."""

    what: str
    do: str


_STORES_NOTHING = _Absent(
    "This endpoint stores no files: a model reads what is in the request.",
    "Put the text, or the image as a `data:` URL, into the request.",
)

_ABSENT: dict[str, _Absent] = {
    **dict.fromkeys(("files", "uploads", "vector_stores", "containers"), _STORES_NOTHING),
    "batches": _Absent(
        "This endpoint has no batches: each request is answered on its own connection.",
        'Send the requests with the header "X-Sparkfleet-Priority: batch": they wait for interactive ones.',
    ),
    **dict.fromkeys(
        ("assistants", "threads", "conversations"),
        _Absent("This endpoint stores no conversations.", "Send the earlier messages with each request."),
    ),
    "fine_tuning": _Absent(
        "This endpoint trains no models.",
        "Serve a checkpoint that was trained elsewhere: `model: DIRECTORY` in a deployment.",
    ),
    "realtime": _Absent(
        "This endpoint has no realtime sessions.", 'Stream the answer of a request: "stream": true.'
    ),
}
"""By the name behind /v1/, or behind /v1/messages/."""
_OTHER_API = re.compile(
    r"(?:/v1)?/api/(?:(?:tags|chat|generate|show|version|ps|pull|push|create|copy|delete|embed|embeddings)/?|blobs/.*|v0/.*)"
)
"""Paths of Ollama's own API, and of LM Studio's."""


def no_such_response(response: str) -> ApiError:
    """404: another key made the stored response, or no gateway of this head knows of it."""
    return _no_response(
        f"There is no stored response {shortened(response)}.",
        "A response belongs to the API key that made it.",
    )


def response_gone() -> ApiError:
    """404: the group that had the stored response is no longer there, or has been unloaded."""
    return _no_response(
        "The stored response is gone.",
        "The engine that had it has ended: send the earlier messages with the request.",
    )


def _no_response(what: str, do: str) -> ApiError:
    return ApiError(what, do=do, status=404, code="response_not_found", kind="not_found")


def no_such_path(path: str, meant: str = "") -> ApiError:
    """404: the API has no such path. `meant`: the one that it has and that was probably meant."""
    name = path.removeprefix("/v1/").removeprefix("messages/").partition("/")[0]
    absent = _ABSENT.get(name) or _other_api(path)
    return ApiError(
        absent.what if absent else f'Unknown path: "{shortened(path)}".',
        do=absent.do if absent else _other_path(path.rstrip("/"), meant),
        status=404,
        code="not_found",
        kind="not_found",
    )


def _other_api(path: str) -> _Absent | None:
    """The API of another server that a client uses, by its path; None if it is none of the known ones."""
    if _OTHER_API.fullmatch(path) is None:
        return None
    return _Absent(
        "This endpoint has no API of Ollama or LM Studio.",
        "Set the client to an OpenAI-compatible server, with the base URL that ends in /v1.",
    )


def _other_path(given: str, meant: str) -> str:
    """The base URL, if that of the client is wrong by a /v1, a slash or a prefix, or the nearest path."""
    if not meant:
        is_page = given.startswith("/api/")
        usual = "GET /v1 lists the usual paths; `endpoints` of a deployment adds others."
        return "GET /api describes what there is." if is_page else usual
    wrong = ""
    if given != meant and re.sub("/+", "/", given) == meant:
        wrong = "give this client the base URL without the slash at its end"
    elif given != meant and given.endswith(meant):
        before = given.removesuffix(meant)
        wrong = f'give this client the base URL without "{shortened(before)}"'
        if set(before.split("/")) <= {"", "v1"}:
            wrong = "this client adds /v1 by itself, so give it the base URL without /v1"
    elif given != meant and meant.endswith(given):
        wrong = "give this client the base URL with /v1 at its end"
    if wrong:
        return f"It is {meant}: {wrong}."
    return f'Did you mean "{meant}"? GET /v1 lists the usual paths.'


def no_such_method(method: str, allowed: Sequence[str]) -> ApiError:
    """405: the path does not support the method."""
    return ApiError(
        f'The method "{shortened(method)}" is not supported here.',
        do=f"Use {' or '.join(allowed)}.",
        status=405,
        code="method_not_allowed",
        headers=((b"allow", ", ".join(allowed).encode()),),
    )


def internal() -> ApiError:
    """500: a defect of the gateway. The log has the traceback under the request's id."""
    return ApiError(
        "The gateway failed to handle this request.",
        do="The gateway's log has the reason, under this answer's x-request-id.",
        status=500,
        code="internal_error",
    )
