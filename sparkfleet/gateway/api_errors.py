"""Errors that the gateway itself returns, in the form of the client's API.

OpenAI's clients expect `{"error": {message, type, param, code}}`; Anthropic's, on `/v1/messages`, expect
`{"type": "error", "error": {type, message}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from sparkfleet.errors import SparkfleetError
from sparkfleet.gateway.request.requirements import Ability
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

Dialect = Literal["openai", "anthropic"]

_LONGEST_NAME = 120
_MOST_NAMES = 20

_KINDS = {
    401: "unauthorised",
    403: "forbidden",
    413: "too_large",
    429: "limited",
    431: "too_large",
    500: "internal",
}
_OPENAI_TYPES = {403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Lack(NamedTuple):
    """Text of the error for a missing capability."""

    noun: str
    means: str
    do: str


_LACKS: dict[Ability, _Lack] = {
    "vision": _Lack(
        "images or video",
        "None of its groups takes images: their weights have no vision tower, or it is switched off.",
        "Remove them, or use a model with vision.",
    ),
    "tools": _Lack(
        "tools",
        "None of its groups parses tool calls: their engines have no parser for this model.",
        'Remove "tools", or set a parser in the deployment ("--tool-call-parser" in "engine_args").',
    ),
}


class ApiError(SparkfleetError):
    """A request that the gateway answers itself, with an error.

    Args:
        code: machine-readable reason, in the answer's `code`.
        kind: label in `sparkfleet_errors_total`; "": that of the status.
        param: the wrong field of the request, if it is one.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int,
        code: str,
        kind: str = "",
        param: str | None = None,
        means: str = "",
        do: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(what, means=means, do=do)
        self.status = status
        self.code = code
        self.kind = kind or _KINDS.get(status, "bad_request")
        self.param = param
        self.headers = headers

    def body(self, dialect: Dialect) -> bytes:
        """The answer's JSON."""
        return error_json(
            " ".join(str(self).splitlines()), self.status, code=self.code, param=self.param, dialect=dialect
        )

    def http_answer(self) -> bytes:
        """The whole answer, for a connection that ends with it, in OpenAI's form: no request has been read."""
        body = self.body("openai")
        fields = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in self.headers)
        head = (
            f"HTTP/1.1 {self.status} Refused\r\ncontent-type: application/json\r\n{fields}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


def error_json(
    message: str, status: int, *, code: str | int, dialect: Dialect, param: str | None = None, kind: str = ""
) -> bytes:
    """An error object in the form of `dialect`, ASCII only. `kind`: OpenAI's `type`, by the status if ""."""
    if dialect == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    kind = kind or _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def dialect_of(path: str) -> Dialect:
    """API of the clients of `path`."""
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


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
        f'The key "{key_name}" may not use the model "{_short(model)}".',
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


def unknown_model(model: str, known: Iterable[str]) -> ApiError:
    """404: no deployment of that name. `known` are the names that the caller may use."""
    names = list(known)
    listed = ", ".join(names[:_MOST_NAMES]) + (" …" if len(names) > _MOST_NAMES else "")
    return ApiError(
        f'There is no model "{_short(model)}".',
        do=f"Available: {listed}." if names else "No model is deployed yet: run `sparkfleet apply`.",
        status=404,
        code="model_not_found",
        kind="unknown_model",
        param="model",
    )


def not_ready(entry: ModelEntry, now: float) -> ApiError:
    """503: the deployment exists, but none of its groups is ready. `now`: Unix seconds."""
    state = "has failed to start" if entry.state == "failed" else f"is {entry.state}"
    return _model_not_ready(
        entry, now, f'The model "{entry.name}" {state}' + (f": {entry.detail}." if entry.detail else ".")
    )


def _model_not_ready(entry: ModelEntry, now: float, what: str) -> ApiError:
    return _later(what, entry.retry_s(now), code="model_not_ready", kind="not_ready")


def unable(entry: ModelEntry, lacking: Sequence[Ability]) -> ApiError:
    """400: no group of the deployment, ready or not, has these capabilities. `lacking` is not empty."""
    nouns = _nouns(lacking)
    if all(any(getattr(group, one) is not False for group in entry.groups) for one in lacking):
        what = f'The model "{entry.name}" does not take {nouns} in one request.'
        means, do = "No single group supports both.", "Send two requests."
    else:
        what = f'This request has {nouns}, which the model "{entry.name}" does not take.'
        means, do = (" ".join(getattr(_LACKS[one], name) for one in lacking) for name in ("means", "do"))
    return ApiError(
        what,
        means=means,
        do=do,
        status=400,
        code="unsupported_by_model",
        kind="unsupported",
        param="tools" if "tools" in lacking else None,
    )


def media_refused(entry: ModelEntry, url: str, host: str) -> ApiError:
    """400: an image, video or sound is named by a URL that the deployment does not allow. `host`: "" if it has none."""
    allowed = f"`media_domains` of its deployment lists {', '.join(entry.media_domains) or 'no host'}"
    add = f", or add {host} to `media_domains` of the deployment and apply it" if host else ""
    return ApiError(
        f'The model "{entry.name}" does not fetch {_short(url)}: {allowed}.',
        means="An engine that fetches any URL reaches hosts and files for its clients that they must not reach.",
        do=f"Send the content as a `data:` URL{add}.",
        status=400,
        code="media_not_allowed",
        kind="unsupported",
    )


def none_ready_for(entry: ModelEntry, needs: Iterable[Ability], now: float) -> ApiError:
    """503: the groups with these capabilities are not ready; others of the deployment are. `needs` is not empty."""
    return _model_not_ready(
        entry, now, f'The groups of "{entry.name}" that take {_nouns(needs)} are not ready.'
    )


def none_ready_so_large(entry: ModelEntry, larger: GroupEntry, now: float) -> ApiError:
    """503: the prompt is too long for the groups that are ready, and `larger` is not."""
    context = f"with a context of {larger.context} tokens" if larger.context else "whose context is not known"
    return _model_not_ready(
        entry,
        now,
        f'The prompt is too long for the groups of "{entry.name}" that are ready; {larger.app}, {context}, is not.',
    )


def no_engine(entry: ModelEntry, now: float) -> ApiError:
    """503: the deployment should serve, but no group takes the request."""
    return _later(
        f'No engine of "{entry.name}" takes requests at the moment.', entry.retry_s(now), code="no_engine"
    )


def engine_lost(entry: ModelEntry, now: float) -> ApiError:
    """503: every engine that got the request was lost before its first byte."""
    return _later(
        f'The engine of "{entry.name}" failed before it answered; it is being replaced.',
        entry.retry_s(now),
        code="engine_lost",
    )


def queue_full(entry: ModelEntry, waiting: int, seconds: int) -> ApiError:
    """503: as many requests wait for the model as may. `seconds`: when they have been served, by their forecasts."""
    return _later(
        f'{waiting} requests wait for "{entry.name}", as many as may.',
        seconds,
        code="queue_full",
        kind="queue",
    )


def waited_too_long(entry: ModelEntry, waited_s: float, seconds: int) -> ApiError:
    """503: no slot was free within the deadline of the queue."""
    return _later(
        f'No group of "{entry.name}" had room within {waited_s:g} s.',
        seconds,
        code="queue_timeout",
        kind="queue",
    )


def too_long(entry: ModelEntry, least: int, largest: int, where: str) -> ApiError:
    """400: the prompt is certainly longer than every context. `where`: the group with the largest one."""
    return ApiError(
        f'The prompt has at least {least} tokens; the largest context of "{entry.name}" is {largest}, on {where}.',
        do="Send a shorter prompt.",
        status=400,
        code="context_length_exceeded",
        kind="unsupported",
        param="messages",
    )


def largest_context(entry: ModelEntry) -> str:
    """The largest context of a deployment and its group, in a sentence; "" if none is known."""
    known = [one for one in (*entry.groups, *entry.external) if one.context is not None]
    if not known:
        return ""
    largest = max(known, key=lambda one: one.context or 0)
    return f'The largest context of "{entry.name}" is {largest.context} tokens, on {largest.app}.'


def no_table() -> ApiError:
    """503: the gateway has just started and has no routing table yet."""
    return _later("The gateway is starting.", 1, code="starting", kind="not_ready")


def gateway_away() -> ApiError:
    """503, of an entry: no gateway accepts connections."""
    return _later("The gateway on the head does not answer.", 5, code="gateway_away")


def draining() -> ApiError:
    """503: this gateway replica is stopping; another one answers on the same port."""
    return _later("This gateway is shutting down.", 1, code="draining", headers=((b"connection", b"close"),))


def bad_request(what: str, *, do: str = "", param: str | None = None, code: str = "bad_request") -> ApiError:
    """400: the request is not valid."""
    return ApiError(what, do=do, status=400, code=code, param=param)


def too_large(limit: int) -> ApiError:
    """413: the body is longer than `limit` bytes."""
    return ApiError(f"The request body is larger than {limit} bytes.", status=413, code="request_too_large")


def budget_full() -> ApiError:
    """503: the bodies of all clients take as much memory as they may."""
    return _later(
        "The gateway holds as many bytes of requests as it may.", 2, code="gateway_busy", kind="body_budget"
    )


def key_budget_full() -> ApiError:
    """429: the bodies of one key take as much memory as they may."""
    return limited("The requests of this key take as much of the gateway's memory as one key may.", 2)


def too_many_connections() -> ApiError:
    """503: this gateway, or this client's address, has as many connections as it may."""
    return _later("There are too many connections.", 2, code="too_many_connections", kind="connections")


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
        f'The content-encoding "{_short(encoding)}" is not supported.',
        do="Send the body as it is, without compression.",
        status=415,
        code="unsupported_encoding",
        headers=((b"accept-encoding", b"identity"),),
    )


def headers_too_large() -> ApiError:
    """431: more headers than a client needs."""
    return ApiError("The request headers are too large.", status=431, code="headers_too_large")


def too_slow(seconds: float) -> ApiError:
    """408: the body did not arrive in time. The connection is closed: the rest of it may still come."""
    return ApiError(
        f"The request body did not arrive within {seconds:g} s.",
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


def no_such_response(response: str) -> ApiError:
    """404: another key made the stored response, or no gateway of this head knows of it."""
    return _no_response(
        f"There is no stored response {_short(response)}.", "A response belongs to the API key that made it."
    )


def response_gone() -> ApiError:
    """404: the group that had the stored response is no longer there."""
    return _no_response(
        "The stored response is gone.",
        "The engine that had it was replaced: send the earlier messages with the request.",
    )


def _no_response(what: str, do: str) -> ApiError:
    return ApiError(what, do=do, status=404, code="response_not_found", kind="not_found")


def holder_not_ready(entry: ModelEntry, app: str, now: float) -> ApiError:
    """503: the group that has the stored response is not ready."""
    return _model_not_ready(
        entry, now, f'The group of "{entry.name}" that has the stored response, {app}, is not ready.'
    )


def no_such_path(path: str) -> ApiError:
    """404: the API has no such path."""
    name = path.removeprefix("/v1/").removeprefix("messages/").partition("/")[0]
    absent = _ABSENT.get(name)
    return ApiError(
        absent.what if absent else f'Unknown path: "{_short(path)}".',
        do=absent.do if absent else "GET /v1 lists the usual paths; `endpoints` of a deployment adds others.",
        status=404,
        code="not_found",
        kind="not_found",
    )


_TASKS: dict[str, str] = {
    "embeddings": "makes no embeddings",
    "moderations": "judges no texts",
    "transcriptions": "transcribes no speech",
    "translations": "translates no speech",
    "speech": "makes no speech",
    "generations": "makes no images",
    "edits": "edits no images",
    "variations": "makes no images",
    "rerank": "ranks no documents",
    "score": "compares no texts",
    "classify": "classifies no texts",
    "pooling": "makes no vectors",
    "completions": "completes no text",
    "messages": "holds no conversation",
    "responses": "holds no conversation",
}
"""A model that lacks a path, by the last word of the path."""


def not_its_task(model: str, path: str) -> ApiError:
    """404: the model's engine has no such path, because the model is of another kind."""
    task = _TASKS.get(path.rpartition("/")[2], "does not do that")
    return ApiError(
        f'The model "{model}" {task}: its engine does not serve {_short(path)}.',
        do="GET /v1/models lists the models of this endpoint; the path needs one that is made for it.",
        status=404,
        code="unsupported_by_model",
        kind="unsupported",
    )


def no_such_method(method: str, allowed: Iterable[str]) -> ApiError:
    """405: the path does not support the method."""
    return ApiError(
        f'The method "{_short(method)}" is not supported here.',
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


def _later(
    what: str, seconds: int, *, code: str, kind: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> ApiError:
    return ApiError(
        what,
        do=f"Try again in {seconds} s.",
        status=503,
        code=code,
        kind=kind or code,
        headers=((b"retry-after", str(seconds).encode()), *headers),
    )


def _nouns(abilities: Iterable[Ability]) -> str:
    return " and ".join(_LACKS[one].noun for one in abilities)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
