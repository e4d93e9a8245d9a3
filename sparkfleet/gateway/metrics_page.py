"""The page that Prometheus reads, on a socket of its own on loopback: the endpoint does not serve it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sparkfleet.errors import ControlError
from sparkfleet.gateway.asgi import App, Receive, Scope, Send, respond
from sparkfleet.gateway.http.http_server import Server, serve
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.ports import free_port

_HOST = "127.0.0.1"
_CONNECTIONS = 64
"""Connections at once, half of them from this machine's loopback: its users could take the gateway's files."""
_CONTENT_TYPE = (b"content-type", CONTENT_TYPE_LATEST.encode())


def metrics_app(registry: CollectorRegistry) -> App:
    """An ASGI application that shows `registry` at `/metrics`."""

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/metrics":
            return await respond(send, 404, [], b"")
        body = generate_latest(registry)
        return await respond(send, 200, [_CONTENT_TYPE], body, head=scope["method"] == "HEAD")

    return page


async def serve_metrics(registry: CollectorRegistry, note: Path) -> Server:
    """Serves the page, always at the port of its first start on this head.

    At any other one while a predecessor that drains has that port, or another program.

    Args:
        note: file with the port, written at the first start.
    """
    app = metrics_app(registry)
    port = _noted(note)
    if port is None:
        port = free_port(_HOST)
        write_atomically(note, f"{port}\n".encode())
    try:
        return await serve(app, _HOST, port, reuse_port=False, connections=_CONNECTIONS)
    except ControlError:
        return await serve(app, _HOST, 0, reuse_port=False, connections=_CONNECTIONS)


def _noted(note: Path) -> int | None:
    try:
        port = int(note.read_text())
    except (OSError, ValueError):
        return None
    return port if 0 < port < 1 << 16 else None
