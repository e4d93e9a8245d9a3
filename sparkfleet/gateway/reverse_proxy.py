"""The way of a request from its client to the groups that can serve it: checked, read, understood, charged to its key."""

from __future__ import annotations

import json
from contextlib import closing

from sparkfleet.gateway.access.limits import RequestLimits, check_encoding, check_target, read_body
from sparkfleet.gateway.access.response_owners import (
    RESPONSES,
    ResponseOwners,
    StoredResponse,
    response_of,
)
from sparkfleet.gateway.admission.key_limiter import KeyLimiter
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.asgi import Receive, Scope, Send, WhileConnected, direct_writer
from sparkfleet.gateway.body.attribution_line import without_changing_digits
from sparkfleet.gateway.body.body_budget import BodyBudget, HeldBody
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.body.scanner import INLINE_BYTES, BodyScanner
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.candidates import candidates_of
from sparkfleet.gateway.delivery import Delivery
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.engine.engine_body import EngineBody, engine_body
from sparkfleet.gateway.engine.external import ExternalPicker
from sparkfleet.gateway.engine.replay import plan_of
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, request_headers
from sparkfleet.gateway.errors.request_errors import no_such_response
from sparkfleet.gateway.http_responses import respond_json
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.page.text_capture import BODY_BYTES, TextCapture, prompt_of
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.request_parser import RequestTarget, is_form
from sparkfleet.gateway.routing_table import KeyEntry, RoutingTable
from sparkfleet.telemetry import catalogue
from sparkfleet.telemetry.metrics import GatewayMetrics
from sparkfleet.telemetry.samples import Sample, sample

BODIES_HELD = 4
"""Longest requests that the budget of bodies holds at once, at least."""


class ReverseProxy:
    """Reads requests, and has those that can be served delivered. It holds the queues, the connections and the counts of
    requests in flight.

    Args:
        budget_bytes: bytes of bodies that are held at once.
        capture: decides if texts are kept; None: never.
        owners: of stored responses; None: known as long as this one runs.
    """

    def __init__(
        self,
        picker: Picker,
        metrics: GatewayMetrics,
        *,
        table: RoutingTable,
        limits: RequestLimits,
        budget_bytes: int,
        queues: ModelQueues,
        capture: TextCapture | None,
        owners: ResponseOwners | None = None,
    ) -> None:
        self._metrics = metrics
        self._capture = capture
        self._owners = owners or ResponseOwners()
        self._limiter = KeyLimiter()
        self.table = table
        self.limits = limits
        self.observed = ObservedGroups()
        self.queues = queues
        metrics.show(self._samples)
        self.observed.on_end = self.queues.pump
        self.observed.on_pause = self.queues.pump_in
        self.bodies = BodyBudget(budget_bytes)
        self.scanner = BodyScanner()
        self.upstream = Upstream()
        self._delivery = Delivery(
            ExternalPicker(picker), self.upstream, queues, self.observed, metrics=metrics, owners=self._owners
        )

    def follow(self, table: RoutingTable) -> None:
        """Routes by this table from now on, those that wait as well, and forgets what is not in it."""
        self.table = table
        self._limiter.keep(key.id for key in table.keys)
        groups = [group for entry in table.models.values() for group in (*entry.groups, *entry.external)]
        self.observed.follow(groups, table.models)
        self.observed.absences.keep(app for entry in table.models.values() for app in entry.apps)
        listed = {
            one.external.url for entry in table.models.values() for one in entry.external if one.external
        }
        self.upstream.trouble = {url: why for url, why in self.upstream.trouble.items() if url in listed}
        self.queues.refresh()

    def _samples(self) -> list[Sample]:
        return [
            sample(catalogue.WAITING, name, value=self.queues.waiting(name)) for name in self.table.models
        ]

    def limit_bodies(self, max_body_bytes: int) -> None:
        """Accepts requests up to this length from now on."""
        self.limits = RequestLimits(body_bytes=max_body_bytes, body_s=self.limits.body_s)
        self.bodies.total = max(self.bodies.total, BODIES_HELD * max_body_bytes)

    async def aclose(self) -> None:
        """Closes the connections to the engines, and ends the processes that read bodies."""
        await self.upstream.aclose()
        await self.scanner.aclose()

    async def forward(
        self, ctx: RequestContext, table: RoutingTable, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Passes one request on, and its answer back.

        Args:
            ctx: the request, with its key.
            table: the table that it was admitted by.

        Raises:
            ApiError: no engine has begun to answer it.
            ClientGone: its client has left.
        """
        check_target(_raw_path(scope), scope["query_string"])
        check_encoding(ctx.headers)
        assert ctx.key is not None
        with (
            closing(self._limiter.admit(ctx.key)) as ctx.admitted,
            closing(HeldBody(self.bodies, ctx.key.id)) as held,
        ):
            ctx.direct = direct_writer(scope)
            body = await read_body(ctx.headers, receive, self.limits, held, ctx.direct)
            ctx.body_read = True
            if self._capture is not None and self._capture.until and body.size <= BODY_BYTES:
                ctx.prompt = prompt_of(body.whole())
            if ctx.dialect == "anthropic":
                body = without_changing_digits(body)
            target = await self._target(ctx, scope["query_string"], receive, body)
            candidates = candidates_of(ctx, table, target, self.observed)
            ctx.admitted.charge(target.needs.prompt_tokens)
            if ctx.explains == "only":
                return await _explain(ctx, candidates, send)
            sent = engine_body(ctx.path, ctx.headers, body, target, candidates)
            ctx.hides_usage = sent.asks_usage
            if candidates.model.replay and 0 < sent.body.size <= INLINE_BYTES and not is_form(ctx.headers):
                ctx.replay = plan_of(ctx.path, sent.body)
            ctx.outgoing = _request(ctx, scope, sent)
            del body, sent  # only the attempts keep it, until an engine answers
            try:
                with self._metrics.in_flight.labels(ctx.model).track_inprogress():
                    await self._delivery.deliver(
                        ctx,
                        candidates,
                        receive,
                        send,
                        choose=lambda: candidates_of(ctx, self.table, target, self.observed),
                        held=held,
                    )
            finally:
                if ctx.slot is not None:
                    ctx.slot.close()
        return None

    async def _target(
        self, ctx: RequestContext, query: bytes, receive: Receive, body: RequestBody
    ) -> RequestTarget:
        """The target of a request. One that names a stored response goes to the group that has it.

        Raises:
            ApiError: the request has a fault, or its key has no such response.
        """
        assert ctx.key is not None
        if response := response_of(ctx.path):
            made = self._owned(response, ctx.key)
            return RequestTarget(made.model, group=made.app)
        target = await self._scan(ctx, query, receive, body)
        if ctx.path != RESPONSES:
            return target
        claimed = self._owners.of(target.claimed)
        if claimed is not None and claimed.key != ctx.key.id:
            raise no_such_response(target.claimed)  # its answer would take that one's place
        if target.previous:
            target = target._replace(group=self._owned(target.previous, ctx.key).app)
        return target

    def _owned(self, response: str, key: KeyEntry) -> StoredResponse:
        made = self._owners.of(response)
        if made is None or made.key != key.id:
            raise no_such_response(response)
        return made

    async def _scan(
        self, ctx: RequestContext, query: bytes, receive: Receive, body: RequestBody
    ) -> RequestTarget:
        assert ctx.key is not None
        if body.size <= INLINE_BYTES:
            return await self.scanner.route(query, ctx.headers, body, ctx.key.id)
        async with WhileConnected(receive):
            return await self.scanner.route(query, ctx.headers, body, ctx.key.id)


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _request(ctx: RequestContext, scope: Scope, sent: EngineBody) -> EngineRequest:
    path, query = _raw_path(scope), scope["query_string"]
    return EngineRequest(
        id=ctx.id,
        method=ctx.method,
        target=(path + b"?" + query if query else path).decode("ascii"),
        headers=request_headers(ctx.headers),
        body=sent.body,
        model_span=sent.model_span,
    )


async def _explain(ctx: RequestContext, candidates: CandidateGroups, send: Send) -> None:
    body = json.dumps(candidates.explain(candidates.forecasts()), indent=1).encode()
    await respond_json(ctx, body, send)
