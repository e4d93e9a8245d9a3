"""The page that Prometheus reads, on a socket of its own on loopback: the endpoint does not serve it."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sparkfleet.gateway.asgi import App, Receive, Scope, Send, respond

_CONTENT_TYPE = (b"content-type", CONTENT_TYPE_LATEST.encode())


def metrics_app(registry: CollectorRegistry) -> App:
    """An ASGI application that shows `registry` at `/metrics`."""

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/metrics":
            return await respond(send, 404, [], b"")
        body = generate_latest(registry)
        return await respond(send, 200, [_CONTENT_TYPE], body, head=scope["method"] == "HEAD")

    return page
