"""The way of a request from its client to the groups that can serve it: checked, read, understood, charged to its key."""

from __future__ import annotations

import json

from sparkfleet.gateway.access.limits import RequestLimits, check_encoding, check_target, read_body
from sparkfleet.gateway.access.response_owners import (
    RESPONSES,
    ResponseOwners,
    StoredResponse,
    response_of,
)
from sparkfleet.gateway.accounting.on_demand_counter import OnDemandCounter
from sparkfleet.gateway.accounting.request_record import RequestRecord
from sparkfleet.gateway.admission.key_limiter import KeyLimiter
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.asgi import Fields, Receive, Scope, Send, WhileConnected, direct_writer
from sparkfleet.gateway.body.attribution_line import without_changing_digits
from sparkfleet.gateway.body.body_budget import BodyBudget, HeldBody
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.body.scanner import INLINE_BYTES, BodyScanner
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.candidates import candidates_of, model_of
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.delivery import Delivery, PreparedRequest
from sparkfleet.gateway.early_stream import STREAM_PATHS, EarlyStream
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.engine.engine_body import EngineBody, engine_body
from sparkfleet.gateway.engine.external import ExternalPicker
from sparkfleet.gateway.engine.replay import ContinuableRequest, continuable_request
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, request_headers
from sparkfleet.gateway.errors.request_errors import no_such_response
from sparkfleet.gateway.http_responses import respond_json
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.page.text_capture import BODY_BYTES, TextCapture, prompt_of
from sparkfleet.gateway.request_parser import RequestTarget, is_form
from sparkfleet.gateway.routing_table import KeyEntry, ModelEntry, RoutingTable
from sparkfleet.gateway.start_wait import StartWait
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
        self.on_demand = OnDemandCounter()
        self._follow_on_demand()
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
        self._follow_on_demand()
        self._limiter.keep(key.id for key in table.keys)
        groups = [group for entry in table.models.values() for group in (*entry.groups, *entry.external)]
        self.observed.follow(groups, table.models)
        for group in (
            one for entry in table.models.values() if entry.state == "unloaded" for one in entry.groups
        ):
            self.observed.forget_cached(group.app)
        self.observed.absences.keep(app for entry in table.models.values() for app in entry.apps)
        listed = {
            one.external.url for entry in table.models.values() for one in entry.external if one.external
        }
        self.upstream.trouble = {url: why for url, why in self.upstream.trouble.items() if url in listed}
        self.queues.refresh()

    def _follow_on_demand(self) -> None:
        self.on_demand.follow(self.table.models.values())
        for name in (one.name for one in self.table.models.values() if one.on_demand):
            self._metrics.start_wait[name]  # from 0 on: a first sample that is higher is no increase

    def _samples(self) -> list[Sample]:
        return [
            sample(catalogue.WAITING, name, value=self.queues.waiting(name)) for name in self.table.models
        ]

    def limit_bodies(self, max_body_bytes: int) -> None:
        """Accepts requests up to this length from now on."""
        self.limits = self.limits.model_copy(update={"body_bytes": max_body_bytes})
        self.bodies.total = max(self.bodies.total, BODIES_HELD * max_body_bytes)

    async def aclose(self) -> None:
        """Closes the connections to the engines, and ends the processes that read bodies."""
        await self.upstream.aclose()
        await self.scanner.aclose()

    async def forward(
        self,
        record: RequestRecord,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        key: KeyEntry,
        table: RoutingTable,
    ) -> None:
        """Passes one request on, and its answer back.

        Args:
            record: the request; its outcome is noted in it.
            table: the table that its key was authenticated by.

        Raises:
            ApiError: no engine has begun to answer it.
            ClientGone: its client has left.
        """
        request = record.request
        check_target(_raw_path(scope), scope["query_string"])
        check_encoding(request.fields)
        record.admitted = admitted = self._limiter.admit(key)
        held = HeldBody(self.bodies, key.id)
        try:
            direct = direct_writer(scope)
            body = await read_body(request.fields, receive, self.limits, held, direct)
            record.body_read = True
            if self._capture is not None and self._capture.until and body.size <= BODY_BYTES:
                record.prompt = prompt_of(body.whole())
            if request.dialect == "anthropic":
                body = without_changing_digits(body)
            target = await self._target(request, key, scope["query_string"], receive, body)
            candidates = self._candidates(record, key, table, target)
            admitted.charge(target.needs.prompt_tokens)
            if request.explains == "only":
                return await _explain(record, candidates, send)
            sent = engine_body(request.path, request.fields, body, target, candidates)
            early = start = None
            if candidates.model.on_demand:
                early = _early_stream(record, target, send)
                start = StartWait(admitted, held, early, self._metrics.start_wait)
            prepared = PreparedRequest(
                record,
                key,
                lambda: self._candidates(record, key, self.table, target),
                direct,
                sent.asks_usage,
                _replay_of(request, candidates.model, sent.body),
                start,
            )
            delivery = self._delivery.deliver(
                prepared,
                candidates,
                _engine_request(request, scope, sent),
                receive,
                early.send if early else send,
                held=held,
            )
            del body, sent  # only the attempts keep it, until an engine answers
            self.on_demand.begin(candidates.model)
            self._metrics.in_flight[(record.model,)] += 1
            try:
                await (delivery if early is None else early.during(delivery))
            finally:
                self._metrics.in_flight[(record.model,)] -= 1
                self.on_demand.end(candidates.model)
                if record.exchange is not None:
                    record.exchange.slot.close()
        finally:
            held.close()
            admitted.close()
        return None

    def _candidates(
        self, record: RequestRecord, key: KeyEntry, table: RoutingTable, target: RequestTarget
    ) -> CandidateGroups:
        model = model_of(table, key, target.model)
        record.model = model.name
        return candidates_of(record.request, key, model, target, self.observed)

    async def _target(
        self, request: ClientRequest, key: KeyEntry, query: bytes, receive: Receive, body: RequestBody
    ) -> RequestTarget:
        """The target of a request. One that names a stored response goes to the group that has it.

        Raises:
            ApiError: the request has a fault, or its key has no such response.
        """
        if response := response_of(request.path):
            made = self._owned(response, key)
            return RequestTarget(made.model, group=made.app)
        target = await self._scan(request.fields, key, query, receive, body)
        if request.path != RESPONSES:
            return target
        claimed = self._owners.of(target.claimed)
        if claimed is not None and claimed.key != key.id:
            raise no_such_response(target.claimed)  # its answer would take that one's place
        if target.previous:
            target = target._replace(group=self._owned(target.previous, key).app)
        return target

    def _owned(self, response: str, key: KeyEntry) -> StoredResponse:
        made = self._owners.of(response)
        if made is None or made.key != key.id:
            raise no_such_response(response)
        return made

    async def _scan(
        self, fields: Fields, key: KeyEntry, query: bytes, receive: Receive, body: RequestBody
    ) -> RequestTarget:
        if body.size <= INLINE_BYTES:
            return await self.scanner.parse(query, fields, body, key.id)
        async with WhileConnected(receive):
            return await self.scanner.parse(query, fields, body, key.id)


def _early_stream(record: RequestRecord, target: RequestTarget, send: Send) -> EarlyStream | None:
    is_stream = target.is_stream and record.request.path in STREAM_PATHS
    return EarlyStream(record, send) if is_stream else None


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _replay_of(request: ClientRequest, model: ModelEntry, body: RequestBody) -> ContinuableRequest | None:
    """The request as one that another group can continue, if its deployment and its content allow that."""
    if not model.replay or not 0 < body.size <= INLINE_BYTES or is_form(request.fields):
        return None
    return continuable_request(request.path, body)


def _engine_request(request: ClientRequest, scope: Scope, sent: EngineBody) -> EngineRequest:
    path, query = _raw_path(scope), scope["query_string"]
    return EngineRequest(
        id=request.id,
        method=request.method,
        target=(path + b"?" + query if query else path).decode("ascii"),
        headers=request_headers(request.headers),
        body=sent.body,
        model_span=sent.model_span,
    )


async def _explain(record: RequestRecord, candidates: CandidateGroups, send: Send) -> None:
    body = json.dumps(candidates.explain(candidates.forecasts()), indent=1).encode()
    await respond_json(record, body, send)
