"""Judges what a socket answers to somebody without a token: refusals, greetings of protocols, or data. Pure.

Whatever no rule here knows counts as data, so that a new kind of listener is looked at once.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GRPC_PATHS = (
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.ActorInfoGcsService/GetAllActorInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
)
"""Calls whose empty request is a valid one, of the servers that a node of Ray has."""

OVER_TLS = b"over TLS: "
"""Begins a request that goes over TLS without a certificate, and the answer of a server that sends no byte after the
handshake: the version of TLS follows."""

_DATA, _HEADERS, _SETTINGS, _LAST_TYPE = 0, 1, 4, 9
_ALERT = 0x15


class Kind(StrEnum):
    """Kinds of answers."""

    NOTHING = "nothing"
    REFUSED = "refused"
    GREETING = "greeting"
    """Bytes that a protocol sends to everybody before anybody authenticates."""
    DATA = "data"


class Verdict(NamedTuple):
    """An answer's kind, and its protocol in words."""

    kind: Kind
    words: str


def grpc_call(path: str) -> bytes:
    """A connection of HTTP/2 with one call whose request is empty, without a token."""
    block = b"\x83\x86" + b"\x04" + _text(path) + b"\x01" + _text("x")  # POST, http, path, authority
    block += b"\x0f\x10" + _text("application/grpc") + b"\x00" + _text("te") + _text("trailers")
    request = _frame(_HEADERS, 0x4, 1, block) + _frame(_DATA, 0x1, 1, bytes(5))
    return PREFACE + _frame(_SETTINGS, 0, 0, b"") + request


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


PROBES: dict[str, bytes] = {
    "(nothing)": b"",
    "a line": b"\r\n",
    "redis PING": b"*1\r\n$4\r\nPING\r\n",
    "redis INFO": b"INFO\r\n",
    "64 bytes": bytes(64),
    **{f"gRPC {path}": grpc_call(path) for path in GRPC_PATHS},
    **{f"gRPC {path} over TLS": OVER_TLS + grpc_call(path) for path in GRPC_PATHS},
}
"""Bytes for sockets that speak something other than HTTP, by their names."""


def judge(answer: bytes) -> Verdict:
    """The kind of an answer to a request without a token."""
    if not answer:
        return Verdict(Kind.NOTHING, "no byte")
    for rule in (_http, _http2, _tls, _zeromq, _redis, _ssh):
        if (found := rule(answer)) is not None:
            return found
    return Verdict(Kind.DATA, f"{len(answer)} bytes of no protocol that is known")


def _http(answer: bytes) -> Verdict | None:
    if answer.startswith(b"<!DOCTYPE HTML") and b"Error code: " in answer:
        return Verdict(Kind.REFUSED, "HTTP/0.9: an error page of Python's http.server")
    words = answer.split(b" ", 2)
    if not words[0].startswith(b"HTTP/1.") or len(words) < 2 or not words[1][:3].isdigit():
        return None
    status, body = int(words[1][:3]), answer.partition(b"\r\n\r\n")[2]
    gives = status == 200 or (200 < status < 300 and bool(body))
    return Verdict(Kind.DATA if gives else Kind.REFUSED, f"HTTP {status}")


def _http2(answer: bytes) -> Verdict | None:
    """Frames of HTTP/2, the first of which are settings. Messages are data; headers have the status of a refusal."""
    given, seen, rest = 0, 0, answer
    while rest:
        if len(rest) < 9:
            return None if not seen else Verdict(Kind.DATA if given else Kind.REFUSED, "HTTP/2, cut off")
        length, kind = int.from_bytes(rest[:3], "big"), rest[3]
        if kind > _LAST_TYPE or (not seen and kind != _SETTINGS):
            return None
        given += len(rest[9 : 9 + length]) if kind == _DATA else 0
        seen += 1
        rest = rest[9 + length :]
    if given:
        return Verdict(Kind.DATA, f"HTTP/2, {given} bytes of a message")
    return Verdict(Kind.REFUSED, "HTTP/2 without a message")


def _tls(answer: bytes) -> Verdict | None:
    if answer.startswith(OVER_TLS):
        version = answer.removeprefix(OVER_TLS).decode("latin-1")
        return Verdict(Kind.REFUSED, f"{version}: it requires a certificate, or another protocol")
    if len(answer) < 7 or answer[0] != _ALERT or answer[1] != 3:
        return None
    whole = len(answer) == 5 + int.from_bytes(answer[3:5], "big")
    return Verdict(Kind.REFUSED, "TLS: it requires a handshake") if whole else None


def _zeromq(answer: bytes) -> Verdict | None:
    """The greeting: signature, version and mechanism, which both sides send at once."""
    if answer[0] != 0xFF or len(answer) < 10 or answer[9] != 0x7F or len(answer) > 64:
        return None
    return Verdict(Kind.GREETING, "ZeroMQ: " + answer[12:32].rstrip(b"\0").decode("latin-1"))


def _redis(answer: bytes) -> Verdict | None:
    if answer[:1] not in (b"-", b"+", b"$", b"*", b":") or not answer.endswith(b"\r\n"):
        return None
    first = answer.partition(b"\r\n")[0][:60].decode("latin-1")
    return Verdict(Kind.REFUSED if first.startswith("-") else Kind.DATA, f"Redis: {first}")


def _ssh(answer: bytes) -> Verdict | None:
    is_banner = answer.startswith(b"SSH-2.0-") and answer.count(b"\n") <= 1 and len(answer) <= 255
    return Verdict(Kind.GREETING, "SSH") if is_banner else None
