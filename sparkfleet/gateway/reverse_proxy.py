"""The way of a request from its client to an engine, and of the answer's bytes back."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from http import HTTPStatus
from time import perf_counter
from typing import Any

from sparkfleet.gateway.access.limits import RequestLimits, check_encoding, check_target, read_body
from sparkfleet.gateway.access.response_owners import (
    RESPONSES,
    ResponseOwners,
    StoredResponse,
    response_of,
)
from sparkfleet.gateway.admission.key_limiter import KeyLimiter
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.asgi import Receive, Scope, Send, WhileConnected, direct_writer, respond
from sparkfleet.gateway.body.attribution_line import without_changing_digits
from sparkfleet.gateway.body.body_budget import BodyBudget, HeldBody
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.body.scanner import INLINE_BYTES, BodyScanner
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.candidates import candidates_of
from sparkfleet.gateway.engine.attempts import Attempts
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.engine.engine_body import EngineBody, engine_body
from sparkfleet.gateway.engine.engine_error import in_dialect, lacks_path, read_error, with_context
from sparkfleet.gateway.engine.external import ExternalPicker
from sparkfleet.gateway.engine.failure_event import FailureWatch
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.relay import AnswerFilters, loop_event, lost_event, relay
from sparkfleet.gateway.engine.replay import CONTINUATIONS, StreamRecord, plan_of
from sparkfleet.gateway.engine.upstream import Request, Upstream, UpstreamAnswer, request_headers
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.engine.usage_event import UsageHider
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import largest_context, not_its_task
from sparkfleet.gateway.errors.request_errors import no_such_response
from sparkfleet.gateway.http_responses import JSON, id_headers, respond_json
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.page.text_capture import BODY_BYTES, TextCapture, prompt_of
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.request_parser import RequestTarget, is_form
from sparkfleet.gateway.routing_table import KeyEntry, ModelEntry, RoutingTable
from sparkfleet.telemetry import catalogue
from sparkfleet.telemetry.metrics import GatewayMetrics
from sparkfleet.telemetry.samples import Sample, sample

BODIES_HELD = 4
"""Longest requests that the budget of bodies holds at once, at least."""
_OF_THE_BODY = (b"content-length", b"content-type")


class ReverseProxy:
    """Takes admitted requests to the engines. It holds the queues, the connections and the counts of requests in flight.

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
        self._picker = ExternalPicker(picker)
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
            body = await read_body(ctx.headers, receive, self.limits, held)
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
            ctx.request = _request(ctx, scope, sent)
            ctx.direct = direct_writer(scope)
            del body, sent  # only the attempts keep it, until an engine answers
            try:
                with self._metrics.in_flight.labels(ctx.model).track_inprogress():
                    await self._pass_on(ctx, target, candidates, receive, send, held=held)
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

    async def _pass_on(
        self,
        ctx: RequestContext,
        target: RequestTarget,
        candidates: CandidateGroups,
        receive: Receive,
        send: Send,
        *,
        held: HeldBody,
    ) -> None:
        sent = perf_counter()
        async with WhileConnected(receive, ctx.direct):
            slot = await self.queues.enter(
                lambda: candidates_of(ctx, self.table, target, self.observed), candidates
            )
            ctx.slot = slot
            if ctx.explains:
                ctx.explanation = slot.candidates.explain(slot.found)
            assert ctx.request is not None
            ctx.attempts = Attempts(
                self._picker,
                self.upstream,
                slot.candidates,
                slot,
                request=ctx.request,
                on_answer=held.close,
                token_ids=ctx.replay is not None,
            )
            without_body = None
            if ctx.replay is not None:
                without_body = replace(ctx.request, body=RequestBody(), model_span=None)
            ctx.request = None
            answer = await ctx.attempts.answer()
            try:
                meter = self._begin_answer(ctx, answer, sent)
                if answer.is_error:
                    await _pass_error_on(ctx, answer, send, meter, slot.candidates.model)
                    return
                filters = _filters(ctx, answer, meter, slot.candidates.model)
                await send(_start(ctx, answer, filters))
                complete = await relay(answer, send, ctx.direct, filters)
                while not complete and (rest := await self._continued(ctx, target, filters, without_body)):
                    answer.close()
                    answer = rest
                    complete = await relay(answer, send, ctx.direct, filters)
            finally:
                answer.close()
        last = filters.rest(whole=complete) + (b"" if complete else _cut_short(ctx, filters))
        if complete or ctx.is_stream:
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _continued(
        self, ctx: RequestContext, target: RequestTarget, filters: AnswerFilters, without_body: Request | None
    ) -> UpstreamAnswer | None:
        """The answer of another group with the rest of a stream whose group was lost; None if there is none."""
        record, lost = filters.record, ctx.attempts
        if lost is None or (filters.loops is not None and filters.loops.found):
            return None
        self.observed.fail(lost.app)
        if record is None or without_body is None:
            return None
        ctx.lost_apps += (lost.app,)
        body = record.continuation()
        if body is not None and record.continuations < CONTINUATIONS:
            request = replace(without_body, body=RequestBody(body))
            if (answer := await self._ask_for_rest(ctx, target, lost, request)) is not None:
                record.resume()
                ctx.replays += ("continued",)
                return answer
        ctx.replays += ("failed",)
        return None

    async def _ask_for_rest(
        self, ctx: RequestContext, target: RequestTarget, lost: Attempts, request: Request
    ) -> UpstreamAnswer | None:
        assert ctx.slot is not None
        try:
            candidates = candidates_of(ctx, self.table, target, self.observed)
            same = tuple(
                one
                for one in candidates.groups
                if one.weights == lost.weights and one.app not in ctx.lost_apps
            )
            candidates = replace(candidates, groups=same, external=())
            attempts = Attempts(self._picker, self.upstream, candidates, ctx.slot, request=request, lost=lost)
            answer = await attempts.answer()
        except ApiError:
            return None
        if not answer.is_stream or answer.status != HTTPStatus.OK:
            answer.close()
            return None
        attempts.retries += lost.retries
        ctx.attempts = attempts
        ctx.slot.answered(is_stream=True)
        return answer

    def _begin_answer(self, ctx: RequestContext, answer: UpstreamAnswer, sent: float) -> UsageMeter:
        ctx.status = answer.status
        if answer.status >= 400:
            ctx.kind = "engine_error" if answer.status >= 500 else "engine_refused"
        assert ctx.slot is not None
        ctx.slot.answered(is_stream=answer.is_stream, is_good=answer.status < 400)
        on_gap = None
        if answer.is_stream:
            ctx.is_stream = True
            self._metrics.ttft.labels(ctx.model).observe(perf_counter() - sent)
            on_gap = self._metrics.itl.labels(ctx.model).observe
        if ctx.path == RESPONSES and answer.status < 400:
            assert ctx.key is not None
            assert ctx.attempts is not None
            made = StoredResponse(ctx.key.id, ctx.model, ctx.attempts.app)
            self._owners.note(answer.first, made)
        ctx.meter = UsageMeter(sent, on_gap)
        return ctx.meter


def _filters(
    ctx: RequestContext, answer: UpstreamAnswer, meter: UsageMeter, model: ModelEntry
) -> AnswerFilters:
    """Filters of an answer: a stream is searched for loops and failures, freed of usage, recorded."""
    if not answer.is_stream:
        return AnswerFilters(meter)
    can_continue = ctx.replay is not None and ctx.attempts is not None and ctx.attempts.weights
    record = StreamRecord(ctx.replay) if ctx.replay is not None and can_continue else None
    return AnswerFilters(
        meter,
        LoopDetector(model.loop_tokens) if model.loop_tokens else None,
        UsageHider(nulls=answer.is_external) if ctx.hides_usage else None,
        record,
        FailureWatch() if record is None else None,
    )


def _cut_short(ctx: RequestContext, filters: AnswerFilters) -> bytes:
    """Records an answer without its end. Returns the last event of a stream; another answer is cut with its connection."""
    if filters.loops is not None and filters.loops.found:
        ctx.found_loop()
        return loop_event(ctx.dialect, filters.meter, filters.loops.tokens)
    ctx.lost_engine()
    if filters.has_report:
        return b""
    return lost_event(ctx.dialect, filters.meter) if ctx.is_stream else b""


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _request(ctx: RequestContext, scope: Scope, sent: EngineBody) -> Request:
    path, query = _raw_path(scope), scope["query_string"]
    return Request(
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


async def _pass_error_on(
    ctx: RequestContext, answer: UpstreamAnswer, send: Send, meter: UsageMeter, model: ModelEntry
) -> None:
    given = await read_error(answer) if answer.error is None else answer.error
    if lacks_path(given, answer.status):
        refusal = not_its_task(ctx.model, ctx.path)
        ctx.status, ctx.kind = refusal.status, refusal.kind
        body = refusal.body(ctx.dialect)
    else:
        body = in_dialect(given, answer.status, ctx.dialect)
        if answer.unfit == "context":
            body = with_context(body, ctx.dialect, largest_context(model))
    meter.feed(body)
    headers = [header for header in answer.headers() if header[0] not in _OF_THE_BODY]
    await respond(send, ctx.status, [*headers, JSON, *id_headers(ctx)], body)


def _start(ctx: RequestContext, answer: UpstreamAnswer, filters: AnswerFilters) -> dict[str, Any]:
    headers = [*answer.headers(), *id_headers(ctx)]
    if filters.is_changed:  # its length changes, too
        headers = [one for one in headers if one[0] != b"content-length"]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}
