"""Requests that no client sends: every one gets an answer in HTTP, none an internal error, and nothing stays behind."""

from __future__ import annotations

import http.client
import json
import re
import socket
from typing import Any
from urllib.parse import quote

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st
from running_gateway import ADMIN, KEY, RunningGateway

from sparkfleet.gateway.access.allowed_paths import _WITH_ID, POSTED
from sparkfleet.gateway.page.openapi import openapi

EXAMPLES = settings(max_examples=150, deadline=None)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["tiny", "gpt-4o", "user", "image_url", "https://example.org/a.png", "batch"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["model", "messages", "content", "type", "text", "url", "image_url", "role", "input", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["messages", "prompt", "input", "system", "tools", "tool_choice", "max_tokens", "stream", "n", "stop",
         "stream_options", "previous_response_id", "metadata", "model"]
    ),
    JSON,
    max_size=6,
)  # fmt: skip
ENDPOINTS = [
    *sorted(POSTED), "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/responses/resp_1/input_items",
]  # fmt: skip


def test_every_path_with_an_id_is_among_the_requests() -> None:
    for pattern, _ in _WITH_ID:
        assert any(pattern.fullmatch(path) for path in ENDPOINTS), pattern.pattern


PATHS = st.sampled_from(
    [*ENDPOINTS, "/v1/models", "/v1/models/tiny",
     "/v1//completions", "/v1/../metrics", "/v1/%2e%2e/x", "/", "/health", "/v1/load_lora_adapter", "/v1/rerank"]
)  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from(
        ["content-type", "x-sparkfleet-explain", "x-sparkfleet-priority", "x-sparkfleet-model", "origin",
         "anthropic-version", "x-request-id", "accept", "content-encoding", "x-forwarded-for", "cookie"]
    ),
    st.sampled_from(
        ["application/json", "multipart/form-data; boundary=x", "multipart/form-data", "1", "only", "batch",
         "tiny", "https://evil.example", "2023-06-01", "gzip", "identity", "a b", "\u00e9", "x" * 300]
    ),
    max_size=4,
)  # fmt: skip


def _body(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")


@EXAMPLES
@given(
    method=st.sampled_from(["GET", "POST", "POST", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"]),
    path=PATHS,
    query=st.sampled_from(["", "?model=tiny", "?model=tiny&model=x", "?%", "?a=" + "b" * 500]),
    headers=HEADERS,
    body=st.one_of(FIELDS.map(_body), FIELDS.map(lambda given: _body({"model": "tiny", **given})), st.binary(max_size=200)),
    has_key=st.sampled_from([True, True, True, False]),
)  # fmt: skip
def test_every_request_has_an_answer_and_leaves_nothing(
    running: RunningGateway,
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes,
    has_key: bool,
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=10)
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    if has_key:
        sent["authorization"] = f"Bearer {KEY}".encode()
    asked = len(running.engine.requests)
    connection.request(method, path + query, body=body or None, headers=sent)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert 200 <= answer.status < 600
    if not has_key and path.startswith("/v1/"):
        assert len(running.engine.requests) == asked, "an engine was asked without a key"
    if answer.status >= 400 and method != "HEAD":
        error = json.loads(text)
        assert error.get("error", {}).get("message"), "an error of neither API's form"
    assert b"Traceback" not in text
    assert running.internal_errors() == 0


PIECES = st.lists(
    st.sampled_from(
        [b"POST /v1/completions HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\n", b"host: x\r\n", b"\r\n", b"\n", b"\0",
         b"content-length: 5\r\n", b"content-length: -1\r\n", b"content-length: 99999999999999999999\r\n",
         b"transfer-encoding: chunked\r\n", b"expect: 100-continue\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"ffffffffff\r\n",
         b"authorization: Bearer " + KEY.encode() + b"\r\n", b"upgrade: websocket\r\nconnection: upgrade\r\n",
         b'{"model": "tiny"}', b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"x" * 1000, b": \r\n",
         b"CONNECT a:1 HTTP/1.1\r\n", b"HEAD / HTTP/1.1\r\n", b"upgrade: h2c\r\n",
         b"GET / HTTP/1.0\r\n\r\n", b"GET http://other/v1/models HTTP/1.1\r\n"]
    ),
    max_size=10,
)  # fmt: skip


@EXAMPLES
@given(pieces=PIECES, hangs_up=st.booleans())
def test_bytes_that_are_no_request_hurt_nobody(
    running: RunningGateway, pieces: list[bytes], hangs_up: bool
) -> None:
    with socket.create_connection(("127.0.0.1", running.hasty.port), timeout=5) as raw:
        try:
            for piece in pieces:
                raw.sendall(piece)
            if not hangs_up:
                raw.shutdown(socket.SHUT_WR)
                seen = b""
                while chunk := raw.recv(65536):
                    seen += chunk
                assert not seen or seen.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
                assert b"HTTP/1.1 500" not in seen
        except TimeoutError:
            raise  # it waits for ever
        except OSError:
            pass  # refused in the middle
    connection = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=5)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    assert running.internal_errors() == 0


# The HTTP API of the page, by its own description

DOCUMENT = openapi("0")
TEMPLATES = sorted(DOCUMENT["paths"])
GOOD = {"{name}": "tiny", "{group}": "tiny/g1/0"}


@EXAMPLES
@given(
    template=st.sampled_from(TEMPLATES),
    method=st.sampled_from(["get", "put", "post", "delete", "patch", "options"]),
    name=st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["..", "tiny/g1/x", "a" * 70, "%00", "tiny/"])),
    query=st.lists(
        st.tuples(
            st.sampled_from(["replica", "rank", "lines", "generation", "minutes", "x", ""]),
            st.one_of(st.integers(-5, 10**12).map(str), st.text(max_size=6)),
        ),
        max_size=3,
    ),
    body=st.one_of(st.none(), st.none(), st.binary(min_size=1, max_size=50), JSON.map(lambda one: json.dumps(one).encode())),
    key=st.sampled_from([ADMIN, ADMIN, ADMIN, KEY, "sk-sf-wrong", ""]),
    headers=HEADERS,
)  # fmt: skip
def test_the_api_answers_as_it_is_described(
    running: RunningGateway,
    template: str,
    method: str,
    name: str | None,
    query: list[tuple[str, str]],
    body: bytes | None,
    key: str,
    headers: dict[str, str],
) -> None:
    """Each path and method of `/api`, with right and wrong names, parameters, keys and bodies."""
    path = template
    for part, good in GOOD.items():
        path = path.replace(part, good if name is None else quote(name, safe="/%."))
    asked = "&".join(f"{quote(one)}={quote(value)}" for one, value in query)
    sent = {one: value.encode("latin-1") for one, value in headers.items()}
    if key:
        sent["authorization"] = f"Bearer {key}".encode()
    running.passed.clear()
    connection = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=30)
    connection.request(method.upper(), path + (f"?{asked}" if asked else ""), body=body, headers=sent)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    operation = DOCUMENT["paths"][template].get(method)
    if operation is None:
        assert answer.status in (404, 405)
    elif re.fullmatch(r"[^{]*", template) or name is None:
        assert str(answer.status) in operation["responses"]
    else:
        assert str(answer.status) in {*operation["responses"], "404", "405"}
    if answer.status != 200:
        assert json.loads(text)["error"]["message"]
        assert not running.passed
    elif operation is not None:
        assert key in (ADMIN, KEY, "")
        assert not running.passed or (key == ADMIN and body is None), (
            "only an admin's request without a body passes"
        )
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(json.loads(text), {**schema, "components": DOCUMENT["components"]})
    assert running.internal_errors() == 0
