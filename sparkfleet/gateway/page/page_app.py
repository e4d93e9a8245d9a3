"""ASGI application of the page: static files, the fleet's state, recent requests, and the API's description.

The static files contain nothing of the fleet. Everything else needs an API key, or a client on this machine's loopback that
uses a loopback address or `localhost` as the host: another site's page in a browser reaches loopback under its own name (DNS
rebinding). No answer has CORS headers, so no other site's script can read one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from sparkfleet import __version__
from sparkfleet.gateway.access.keys import authenticate
from sparkfleet.gateway.admission.model_queue import QueueOutlook
from sparkfleet.gateway.asgi import Headers, Scope, Send, respond
from sparkfleet.gateway.page.fleet_view import DeploymentView, FleetView
from sparkfleet.gateway.page.openapi import openapi
from sparkfleet.gateway.routing_table import KeyEntry, RoutingTable

log = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[str]]
"""The controller's view of the fleet, JSON of FleetView."""

Outlook = Callable[[str], QueueOutlook]
"""The queue of a model at this gateway."""

FRESH_S = 1.0
"""Seconds for which one answer of the controller serves every open page."""
ASK_S = 3.0
"""Time limit of the controller's answer."""
RECENT = 100
_SECURITY: Headers = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
        b" form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_STATIC = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page/draw.js": ("draw.js", b"text/javascript; charset=utf-8"),
    "/page/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", b"image/svg+xml"),
}
_API = ("/api", "/api/fleet", "/api/requests")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9.]{1,64}))(?::[0-9]{1,5})?")
_METHODS = ("GET", "HEAD")


class Reader(NamedTuple):
    """The reader of an answer: the holder of a key, or a program on this machine."""

    key: KeyEntry | None

    def sees(self, table: RoutingTable, name: str) -> bool:
        """True if this reader may see a deployment; a key only those that it may use."""
        entry = table.models.get(name)
        return self.key is None or (entry is not None and entry.allows(self.key))


class PageApp:
    """The page of one gateway replica.

    Args:
        ask: returns the controller's view; it may fail.
        clock: a clock that only goes forward, seconds.
    """

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._view: FleetView | None = None
        self._at = -FRESH_S
        self._asking = asyncio.Lock()
        self._trouble = "The controller has not answered yet."
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._files = {
            path: (kind, (files("sparkfleet.gateway.page") / "static" / name).read_bytes())
            for path, (name, kind) in _STATIC.items()
        }

    def owns(self, path: str) -> bool:
        """True if the page answers this path."""
        return path in _STATIC or path in _API

    def note(self, line: Mapping[str, Any]) -> None:
        """Keeps a finished request, as the access log has it: never a key, a prompt or an answer."""
        self._recent.append({**line, "at": time.time()})

    async def __call__(self, scope: Scope, send: Send, table: RoutingTable, outlook: Outlook) -> None:
        """Answers one request. `outlook`: the queue of a model at this gateway."""
        path, head = scope["path"], scope["method"] == "HEAD"
        if scope["method"] not in _METHODS:
            return await self._refuse(
                send, 405, "Only GET and HEAD are allowed here.", ((b"allow", b"GET, HEAD"),)
            )
        if path in self._files:
            kind, body = self._files[path]
            fields = (*_SECURITY, (b"content-type", kind), (b"cache-control", b"no-cache"))
            return await respond(send, 200, fields, body, head=head)
        if path == "/api":
            return await self._json(send, openapi(__version__), head)
        reader = reader_of(scope, table)
        if reader is None:
            return await self._refuse(send, 401, "Send an API key, as `Authorization: Bearer sk-sf-…`.")
        if path == "/api/requests":
            return await self._json(send, {"version": 1, "requests": self._requests(reader)}, head)
        return await self._json(send, await self._fleet(reader, table, outlook), head)

    def _requests(self, reader: Reader) -> list[dict[str, Any]]:
        return [one for one in reversed(self._recent) if reader.key is None or one["key"] == reader.key.name]

    async def _fleet(self, reader: Reader, table: RoutingTable, outlook: Outlook) -> dict[str, Any]:
        await self._refresh()
        if self._view is None:
            return {"version": 1, "trouble": self._trouble, "stale_s": None}
        view = self._view.model_copy(
            update={
                "deployments": tuple(
                    _as_seen_here(one, table, outlook)
                    for one in self._view.deployments
                    if reader.sees(table, one.name)
                ),
                "events": tuple(
                    one
                    for one in self._view.events
                    if reader.key is None or reader.sees(table, one.deployment)
                ),
            }
        )
        document: dict[str, Any] = view.model_dump(mode="json")
        document["trouble"] = self._trouble or view.trouble
        document["stale_s"] = round(max(0.0, time.time() - view.at), 1)
        document["reader"] = reader.key.name if reader.key else None
        return document

    async def _refresh(self) -> None:
        """Reads the controller's view if the last one is older than `FRESH_S`; readers at once share one reading."""
        async with self._asking:
            if self._clock() - self._at < FRESH_S:
                return
            try:
                async with asyncio.timeout(ASK_S):
                    self._view, self._trouble = FleetView.model_validate_json(await self._ask()), ""
            except Exception as error:
                log.info("no view from the controller: %r", error)
                self._trouble = (
                    "The controller does not answer: this is what it last reported. What runs goes on."
                )
            self._at = self._clock()

    async def _json(self, send: Send, document: object, head: bool) -> None:
        fields = (*_SECURITY, (b"content-type", b"application/json"), (b"cache-control", b"no-store"))
        await respond(send, 200, fields, json.dumps(document).encode(), head=head)

    async def _refuse(self, send: Send, status: int, words: str, more: Headers = ()) -> None:
        body = json.dumps({"error": {"message": words}}).encode()
        await respond(send, status, (*_SECURITY, (b"content-type", b"application/json"), *more), body)


def _as_seen_here(one: DeploymentView, table: RoutingTable, outlook: Outlook) -> DeploymentView:
    """A deployment with what the gateway itself knows: its queue, and the expected end of a start."""
    queue, entry = outlook(one.name), table.models.get(one.name)
    return one.model_copy(
        update={
            "queued": queue.waiting,
            "wait_s": queue.wait_s,
            "ready_at": entry.ready_at if entry else None,
        }
    )


def reader_of(scope: Scope, table: RoutingTable) -> Reader | None:
    """The reader of a request; None if it has neither a valid key nor comes from this machine."""
    key = authenticate(scope["headers"], table.keys)
    if key is not None:
        return Reader(key)
    given = any(name in (b"authorization", b"x-api-key") for name, _ in scope["headers"])
    return Reader(None) if not given and _is_local(scope) else None


def _is_local(scope: Scope) -> bool:
    client, hosts = scope.get("client"), [value for name, value in scope["headers"] if name == b"host"]
    forwarded = any(
        name in (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via") for name, _ in scope["headers"]
    )
    if not client or len(hosts) != 1 or forwarded:
        return False  # behind a proxy on this machine, everybody comes from loopback
    return _is_loopback(client[0]) and _is_own_host(hosts[0].decode("latin-1"))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def _is_own_host(host: str) -> bool:
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    return match["name"] == "localhost" or _is_loopback(match["v6"] or match["name"])
