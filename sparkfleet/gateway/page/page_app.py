"""ASGI application of the page: static files, the fleet's state, recent requests, admins' changes, the API's description.

The static files contain nothing of the fleet. Everything else needs an API key, or a client on this machine's loopback that
uses a loopback address or `localhost` as the host: another site's page in a browser reaches loopback under its own name (DNS
rebinding). No answer has CORS headers, so no other site's script can read one. Logs and changes need an admin key in a
header, which no browser adds by itself, and are refused to pages of other origins.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from sparkfleet import __version__
from sparkfleet.gateway.access.allowed_paths import meant_path
from sparkfleet.gateway.access.host_header import address_in
from sparkfleet.gateway.access.keys import authenticate
from sparkfleet.gateway.access.limits import has_body
from sparkfleet.gateway.admission.model_queue import QueueOutlook
from sparkfleet.gateway.asgi import Headers, Receive, Scope, Send, respond, respond_early
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.errors.request_errors import no_such_path
from sparkfleet.gateway.page.admin_routes import match, of_another_site, reason_of
from sparkfleet.gateway.page.fleet_change import CaptureRequest, FleetAnswer, FleetChange, LogRequest
from sparkfleet.gateway.page.fleet_view import DeploymentView, FleetView
from sparkfleet.gateway.page.openapi import MOST_REQUESTS, description
from sparkfleet.gateway.page.text_capture import TextCapture, answer_of
from sparkfleet.gateway.routing_table import KeyEntry, RoutingTable

log = logging.getLogger(__name__)

ReadView = Callable[[], Awaitable[str]]
"""The controller's view of the fleet, JSON of FleetView."""

Pass = Callable[[str], Awaitable[str]]
"""Passes a request on to the controller: JSON of FleetChange or LogRequest, and of FleetAnswer."""

Outlook = Callable[[str], QueueOutlook]
"""The queue of a model at this gateway."""

FRESH_S = 1.0
"""Seconds for which one answer of the controller serves every open page."""
ASK_S = 3.0
"""Time limit of the controller's answer."""
CHANGE_S = 12.0
"""Time limit of a change or a log. A change that takes longer may still happen."""
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
    "/page/admin.js": ("admin.js", b"text/javascript; charset=utf-8"),
    "/page/on_demand.js": ("on_demand.js", b"text/javascript; charset=utf-8"),
    "/page/draw.js": ("draw.js", b"text/javascript; charset=utf-8"),
    "/page/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", b"image/svg+xml"),
}
_API = ("/api", "/api/fleet", "/api/requests")
_METHODS = ("GET", "HEAD")
_JSON = (b"content-type", b"application/json")


class PageReader(NamedTuple):
    """The reader of an answer: the holder of a key, or a program on this machine."""

    key: KeyEntry | None

    @property
    def name(self) -> str | None:
        """Name of the key; None for a program on this machine."""
        return self.key.name if self.key is not None else None

    @property
    def is_admin(self) -> bool:
        """True if the key is an admin's."""
        return self.key is not None and self.key.limits.admin

    @property
    def sees_all(self) -> bool:
        """True if nothing of the fleet is hidden from this reader."""
        return self.key is None or self.key.limits.admin

    def sees(self, table: RoutingTable, name: str) -> bool:
        """True if this reader may see a deployment; a key only those that it may use."""
        entry = table.models.get(name)
        return self.sees_all or (self.key is not None and entry is not None and entry.allows(self.key))


class PageApp:
    """The page of one gateway replica.

    Args:
        ask: returns the controller's view; it may fail.
        change: lets the controller carry out an admin's change.
        read_log: lets it read the end of a rank's log.
    """

    def __init__(
        self,
        ask: ReadView,
        change: Pass | None = None,
        read_log: Pass | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._change = change
        self._read_log = read_log
        self._clock = clock
        self._view: FleetView | None = None
        self._at = -FRESH_S
        self._asking = asyncio.Lock()
        self._trouble = "The controller has not answered yet."
        self.capture = TextCapture()
        """Decides if texts of requests are kept."""
        self._has_texts = False
        self._recent: deque[dict[str, Any]] = deque(maxlen=MOST_REQUESTS)
        self._files = {
            path: (kind, (files("sparkfleet.gateway.page") / "static" / name).read_bytes())
            for path, (name, kind) in _STATIC.items()
        }
        description(__version__)  # before there are streams

    def owns(self, path: str) -> bool:
        """True if the page answers this path."""
        return path in _STATIC or path in _API or path.startswith("/api/")

    def note(self, line: Mapping[str, Any], prompt: str = "", meter: UsageMeter | None = None) -> None:
        """Keeps a finished request, as the access log has it: never a key, and texts only while an admin has that on."""
        text = {}
        if self.capture.until is None:
            self._forget_texts()
        elif prompt:
            text = {"prompt": prompt, "answer": answer_of(meter.beginning) if meter else ""}
            self._has_texts = True
        self._recent.append({**line, **text, "at": time.time()})

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, table: RoutingTable, outlook: Outlook
    ) -> None:
        """Answers one request. `outlook`: the queue of a model at this gateway."""
        path = scope["path"]
        try:
            if path in self._files or path in _API:
                await self._read(scope, send, table, outlook)
            else:
                await self._for_admins(scope, receive, send, table)
        except _Refused as refused:
            await self._refuse(send, refused)

    async def _read(self, scope: Scope, send: Send, table: RoutingTable, outlook: Outlook) -> None:
        path, head = scope["path"], scope["method"] == "HEAD"
        if scope["method"] not in _METHODS:
            raise _Refused(405, "Only GET and HEAD are allowed here.", ((b"allow", b"GET, HEAD"),))
        if path in self._files:
            kind, body = self._files[path]
            fields = (*_SECURITY, (b"content-type", kind), (b"cache-control", b"no-cache"))
            return await respond(send, 200, fields, body, head=head)
        if path == "/api":
            return await self._whole(send, description(__version__), head)
        reader = reader_of(scope, table)
        if reader is None:
            raise _Refused(401, "Send an API key, as `Authorization: Bearer sk-sf-…`.")
        if path == "/api/requests":
            return await self._json(send, {"version": 1, "requests": self._requests(reader)}, head)
        return await self._json(send, await self._fleet(reader, table, outlook), head)

    async def _for_admins(self, scope: Scope, receive: Receive, send: Send, table: RoutingTable) -> None:
        """Answers a request that needs an admin key."""
        route, method = match(scope["path"]), scope["method"]
        if route is None:
            unknown = no_such_path(scope["path"], meant_path(scope["path"]))
            raise _Refused(404, f"{unknown.what} {unknown.do}")
        if method not in route.methods:
            allow = ", ".join(route.methods)
            raise _Refused(405, f"Only {allow} is allowed here.", ((b"allow", allow.encode()),))
        key = _admin(scope["headers"], table)
        if has_body(scope["headers"]):
            body = json.dumps({"error": {"message": "This request takes no body."}}).encode()
            return await respond_early(receive, send, 400, (*_SECURITY, _JSON), body)
        try:
            request = route.request(method, scope["query_string"], f"{key.name} (page)")
        except ValueError as error:
            raise _Refused(400, reason_of(error)) from error
        if isinstance(request, CaptureRequest):
            return await self._switch_capture(send, request, key)
        return await self._pass_on(send, request)

    async def _switch_capture(self, send: Send, request: CaptureRequest, key: KeyEntry) -> None:
        if request.minutes:
            self.capture.begin(request.minutes)
            done = f"Texts of requests are kept for {request.minutes} min, in memory, for admin keys."
        else:
            self.capture.end()
            self._forget_texts()
            done = "No text is kept; those that were are deleted."
        log.warning("capture of texts, by key %s: %s", key.name, done)
        await self._json(send, {"version": 1, "done": done}, head=False)

    def _forget_texts(self) -> None:
        if self._has_texts:
            for one in self._recent:
                one.pop("prompt", None)
                one.pop("answer", None)
        self._has_texts = False

    async def _pass_on(self, send: Send, request: FleetChange | LogRequest) -> None:
        is_change = isinstance(request, FleetChange)
        pass_on = self._change if is_change else self._read_log
        try:
            if pass_on is None:
                raise ConnectionError("this gateway has no controller")
            async with asyncio.timeout(CHANGE_S):
                answer = FleetAnswer.model_validate_json(await pass_on(request.model_dump_json()))
        except Exception as error:
            log.warning("the controller gave no answer to %s: %r", request, error)
            words = "The controller does not answer."
            if is_change:
                words += " If it had begun, the change may still happen."
            raise _Refused(503, words, ((b"retry-after", b"5"),)) from error
        if answer.what:
            raise _Refused(409, " ".join(filter(None, (answer.what, answer.means, answer.do))))
        found = {"done": answer.done} if is_change else answer.model_dump(include={"node", "path", "log"})
        await self._json(send, {"version": 1, **found}, head=False)

    def _requests(self, reader: PageReader) -> list[dict[str, Any]]:
        if self.capture.until is None:
            self._forget_texts()
        hidden = () if reader.is_admin else ("prompt", "answer")
        return [
            {name: value for name, value in one.items() if name not in hidden}
            for one in reversed(self._recent)
            if reader.sees_all or one["key"] == reader.name
        ]

    async def _fleet(self, reader: PageReader, table: RoutingTable, outlook: Outlook) -> dict[str, Any]:
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
                    one for one in self._view.events if reader.sees_all or reader.sees(table, one.deployment)
                ),
                "stopped": self._view.stopped if reader.sees_all else (),
                "warnings": self._view.warnings if reader.sees_all else (),
            }
        )
        document: dict[str, Any] = view.model_dump(mode="json")
        document["trouble"] = self._trouble or view.trouble
        document["stale_s"] = round(max(0.0, time.time() - view.at), 1)
        document["reader"] = reader.name
        document["admin"] = reader.is_admin
        document["capture_until"] = self.capture.until
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
                    " `sparkfleet status` has the reason, as far as it is known."
                )
            self._at = self._clock()

    async def _json(self, send: Send, document: object, head: bool) -> None:
        await self._whole(send, json.dumps(document).encode(), head)

    async def _whole(self, send: Send, document: bytes, head: bool) -> None:
        await respond(send, 200, (*_SECURITY, _JSON, (b"cache-control", b"no-store")), document, head=head)

    async def _refuse(self, send: Send, refused: _Refused) -> None:
        body = json.dumps({"error": {"message": refused.words}}).encode()
        await respond(send, refused.status, (*_SECURITY, _JSON, *refused.more), body)


class _Refused(Exception):
    """A refusal, with its status and its words."""

    def __init__(self, status: int, words: str, more: Headers = ()) -> None:
        super().__init__(words)
        self.status, self.words, self.more = status, words, more


def _admin(headers: Headers, table: RoutingTable) -> KeyEntry:
    """The admin key of a request. Raises _Refused if it has none."""
    if of_another_site(headers):
        raise _Refused(403, "A page of another site sent this request: nothing was changed.")
    key = authenticate(headers, table.keys)
    if key is None:
        raise _Refused(401, "Send an admin API key, as `Authorization: Bearer sk-sf-…`.")
    if not key.limits.admin:
        raise _Refused(
            403, f"The key {key.name!r} is no admin key; `sparkfleet keys create NAME --admin` makes one."
        )
    return key


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


def reader_of(scope: Scope, table: RoutingTable) -> PageReader | None:
    """The reader of a request; None if it has neither a valid key nor comes from this machine."""
    key = authenticate(scope["headers"], table.keys)
    if key is not None:
        return PageReader(key)
    given = any(name in (b"authorization", b"x-api-key") for name, _ in scope["headers"])
    return PageReader(None) if not given and _is_local(scope) else None


def _is_local(scope: Scope) -> bool:
    client, hosts = scope.get("client"), [value for name, value in scope["headers"] if name == b"host"]
    forwarded = any(
        name in (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via") for name, _ in scope["headers"]
    )
    if not client or len(hosts) != 1 or forwarded:
        return False  # behind a proxy on this machine, everybody comes from loopback
    host = address_in(hosts[0].decode("latin-1"))
    return _is_loopback(client[0]) and host is not None and (host == "localhost" or _is_loopback(host))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
