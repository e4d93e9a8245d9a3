"""Answers 401 to every request without the engine's token. Runs inside the engine's own process, from this one file.

vLLM checks its key only below /v1, /v2, /inference and /cohere, SGLang on every path but those that begin with /health,
/ready and /metrics; neither checks it for OPTIONS or on a WebSocket. Without a token this guard lets nothing through, not
even the health check: sparkfleet's own carries the token. A second token opens the metrics page and nothing else.

vLLM imports the class by `--middleware`; SGLang has no such flag, so `install` wraps what its web server serves. Standard
library only: an image has its own Python, and no sparkfleet.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKENS = ("SPARKFLEET_ENGINE_TOKEN", "VLLM_API_KEY")
"""Variables of the token; the first that is set counts. Without any, every request is refused."""
METRICS_TOKEN = "SPARKFLEET_METRICS_TOKEN"  # noqa: S105 (the name of a variable)
"""Variable of the metrics token; several between spaces, while the fleet's secrets change."""
METRICS_PATH = "/metrics"

AsgiMapping = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMapping]]
Send = Callable[[AsgiMapping], Awaitable[None]]
Application = Callable[[AsgiMapping, Receive, Send], Awaitable[None]]

_BODY = b'{"error": "Unauthorized"}'


class Guard:
    """ASGI middleware around an engine's whole application."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self._token = next((os.environ[name] for name in TOKENS if os.environ.get(name)), "")
        self._metrics_tokens = os.environ.get(METRICS_TOKEN, "").split()

    async def __call__(self, scope: AsgiMapping, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it. The server's own start and end (`lifespan`) carry no token."""
        if scope["type"] == "lifespan" or self._admits(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _admits(self, scope: AsgiMapping) -> bool:
        given = _bearer(scope)
        if given is None:
            return False
        if _same(given, self._token):
            return True
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        good = any(_same(given, token) for token in self._metrics_tokens)
        return reads and scope["path"] == METRICS_PATH and good


def install() -> None:
    """Puts the guard around everything that uvicorn serves in this process."""
    import uvicorn

    load = uvicorn.Config.load

    def guarded(self: uvicorn.Config) -> None:
        load(self)
        self.loaded_app = Guard(self.loaded_app)

    uvicorn.Config.load = guarded  # type: ignore[method-assign]


def _bearer(scope: AsgiMapping) -> bytes | None:
    """The bearer token of a request; None without one, or with several headers."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else None


def _same(given: bytes, expected: str) -> bool:
    return bool(expected) and hmac.compare_digest(given, expected.encode())
