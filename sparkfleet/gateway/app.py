"""The gateway's ASGI application: dispatches requests, admits those with a key, and answers with errors in words."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection

from sparkfleet.gateway.access.allowed_paths import MODELS, allowed_methods, meant_path
from sparkfleet.gateway.access.cors import allowed_origin, preflight, readable_by
from sparkfleet.gateway.access.keys import authenticate, expired_key
from sparkfleet.gateway.access.limits import RequestLimits, check_headers
from sparkfleet.gateway.access.response_owners import ResponseOwners
from sparkfleet.gateway.accounting.request_record import RequestRecord
from sparkfleet.gateway.accounting.usage_counter import UsageCounter
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.asgi import ClientGone, Receive, Scope, Send, respond
from sparkfleet.gateway.body.body_budget import BUDGET_BYTES
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import (
    admin_only,
    draining,
    expired,
    internal,
    no_such_method,
    no_such_path,
    no_table,
    unauthorised,
)
from sparkfleet.gateway.http_responses import JSON, id_headers, refuse, refuse_websocket, respond_json
from sparkfleet.gateway.model_list import is_model_path, model_document
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.report import OnDemandUse
from sparkfleet.gateway.reverse_proxy import ReverseProxy
from sparkfleet.gateway.routing_table import KeyEntry, RoutingTable
from sparkfleet.telemetry.metrics import GatewayMetrics

access_log = logging.getLogger("sparkfleet.gateway.access")
log = logging.getLogger("sparkfleet.gateway")

_LOCAL_METHODS = ("GET", "HEAD")
_NOT_COUNTED = range(400, 499)
"""Statuses of requests that cost nothing: an engine refused them. 499 is a client that left."""
_ROOT = ("/v1", "/v1/")
_HEALTH = ("/healthz", "/health", "/v1/health")
_INDEX_JSON = json.dumps(
    {
        "object": "api",
        "server": "sparkfleet",
        "models": MODELS,
        "openai": ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"],
        "anthropic": ["/v1/messages", "/v1/messages/count_tokens"],
        "health": "/health",
    }
).encode()


class GatewayApp:
    """The ASGI application.

    Args:
        budget_bytes: bytes of bodies that are held at once.
        origins: origins of other sites whose scripts may read answers.
        page: answers what is not of the API; None: nothing does.
        owners: of stored responses; None: they are known as long as this gateway runs.
    """

    def __init__(
        self,
        picker: Picker,
        metrics: GatewayMetrics | None = None,
        *,
        table: RoutingTable | None = None,
        limits: RequestLimits | None = None,
        budget_bytes: int = BUDGET_BYTES,
        queues: ModelQueues | None = None,
        origins: Collection[str] = (),
        page: PageApp | None = None,
        owners: ResponseOwners | None = None,
    ) -> None:
        self.metrics = metrics or GatewayMetrics()
        self._page = page
        self.proxy = ReverseProxy(
            picker,
            self.metrics,
            table=table or RoutingTable(),
            limits=limits or RequestLimits(),
            budget_bytes=budget_bytes,
            queues=queues or ModelQueues(),
            capture=page.capture if page is not None else None,
            owners=owners,
        )
        self.origins = frozenset(origins)
        """Origins of other sites whose scripts may read answers."""
        self._in_flight = 0
        self._idle = asyncio.Event()
        """Set once no request is in flight, while it drains."""
        self._draining = False
        self.usage = UsageCounter()
        self.keys_used: dict[str, float] = {}
        """Unix seconds of the last request with each key, by its id."""

    @property
    def table(self) -> RoutingTable:
        """The routing table. One of version 0 is empty and never replaces one with content."""
        return self.proxy.table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        if table.version:
            self.proxy.follow(table)

    @property
    def external_trouble(self) -> str:
        """The last failures of endpoints outside the fleet, in words; "" if each answered its last request."""
        return "; ".join(f"{url}: {why}" for url, why in self.proxy.upstream.trouble.items())

    @property
    def failing_groups(self) -> tuple[str, ...]:
        """Groups that count as ready and whose requests fail, in words."""
        return self.proxy.observed.failing()

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._in_flight

    @property
    def queued(self) -> dict[str, int]:
        """Number of them that wait for a free slot of a group, by model; models that none waits for are left out."""
        found = {model: self.proxy.queues.waiting(model) for model in self.table.models}
        return {model: count for model, count in found.items() if count}

    @property
    def on_demand(self) -> dict[str, OnDemandUse]:
        """Use of each model that is on demand."""
        return self.proxy.on_demand.uses(self.table.models.values(), self.proxy.queues.waiting)

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new requests and those that wait for a start, and waits for those in flight. True if all ended in time."""
        self._draining = True
        self.proxy.queues.refuse_starts(
            draining()
        )  # its client tries again, and waits at the replica that is next
        if not self._in_flight:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        """Closes the connections to the engines, and ends the processes that read bodies."""
        await self.proxy.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "websocket":
            return await refuse_websocket(receive, send)
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        if scope["path"] in _HEALTH:
            return await self._health(scope, send)
        if self._page is not None and self._page.owns(scope["path"]):
            return await self._page(scope, receive, send, self.proxy.table, self.proxy.queues.outlook)
        if origin := allowed_origin(scope["headers"], self.origins):
            send = readable_by(send, origin)
        if scope["path"] in _ROOT and scope["method"] in _LOCAL_METHODS:
            return await respond(send, 200, [JSON], _INDEX_JSON, head=scope["method"] == "HEAD")
        record = RequestRecord(ClientRequest(scope["method"], scope["path"], scope["headers"]))
        self._in_flight += 1
        try:
            await self._answer_or_refuse(record, scope, receive, send)
        finally:
            self._end(record)

    def _end(self, record: RequestRecord) -> None:
        self._in_flight -= 1
        if self._draining and not self._in_flight:
            self._idle.set()
        record.finish(self.metrics)
        self._count(record)
        if self._page is not None:
            self._page.note(record.log_line(), record.prompt, record.meter)
        if access_log.isEnabledFor(logging.INFO):
            access_log.info("%s", json.dumps(record.log_line()))

    def _count(self, record: RequestRecord) -> None:
        """Counts a request that an engine has begun to answer."""
        if record.key is None or record.meter is None or record.status in _NOT_COUNTED:
            return
        self.usage.add(record.key.name, record.model, record.usage)

    async def _answer_or_refuse(
        self, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            await self._answer(record, scope, receive, send)
        except ClientGone:
            record.note_client_gone()
        except asyncio.CancelledError:
            record.note_client_gone("shutdown")
            raise
        except ApiError as refusal:
            await refuse(record, refusal, receive, send)
        except Exception:
            log.exception("request %s failed", record.request.id)
            if record.status:
                record.kind = "internal"
                raise  # the server cuts the connection
            await refuse(record, internal(), receive, send)

    async def _answer(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        request = record.request
        is_local = is_model_path(request.path)
        allowed = _LOCAL_METHODS if is_local else allowed_methods(request.path, self.proxy.table.endpoints)
        if request.method == "OPTIONS" and allowed:
            record.status = 204
            origin = allowed_origin(request.headers, self.origins)
            fields = [(b"allow", ", ".join(allowed).encode()), *id_headers(record)]
            fields += preflight(request.headers, origin)
            return await respond(send, 204, fields, b"")
        if not request.path.startswith("/v1/"):
            raise no_such_path(request.path, meant_path(request.path))
        record.key = key = self._authenticate(request)
        table = self.proxy.table
        if not allowed:
            raise no_such_path(request.path, meant_path(request.path))
        if request.method not in allowed:
            raise no_such_method(request.method, allowed)
        if is_local:
            document = model_document(request.path, table, key)
            return await respond_json(record, json.dumps(document).encode(), send)
        if not key.limits.inference:
            raise admin_only(key.name)
        return await self.proxy.forward(record, scope, receive, send, key=key, table=table)

    def _authenticate(self, request: ClientRequest) -> KeyEntry:
        if self._draining:
            raise draining()
        if not self.proxy.table.version:
            raise no_table()
        check_headers(request.headers, self.proxy.limits)
        key = authenticate(request.headers, self.proxy.table.keys)
        if key is None:
            if old := expired_key(request.headers, self.proxy.table.keys):
                raise expired(old.name)
            given = any(name in (b"authorization", b"x-api-key") for name, _ in request.headers)
            raise unauthorised(given=given)
        self.keys_used[key.id] = time.time()
        return key

    async def _health(self, scope: Scope, send: Send) -> None:
        state = "draining" if self._draining else "ok" if self.proxy.table.version else "starting"
        body = json.dumps({"status": state}).encode()
        head = scope["method"] == "HEAD"
        await respond(send, 200 if state == "ok" else 503, [JSON], body, head=head)
