"""The way of an admitted request to an engine, and of the answer's bytes back, the rest of a lost stream included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from time import perf_counter
from typing import Any

from sparkfleet.gateway.access.response_owners import RESPONSES, ResponseOwners, StoredResponse
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.asgi import Receive, Send, WhileConnected, respond
from sparkfleet.gateway.body.body_budget import HeldBody
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.engine.attempts import Attempts
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.engine.engine_error import in_dialect, lacks_path, read_error, with_context
from sparkfleet.gateway.engine.failure_event import FailureWatch
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.relay import AnswerFilters, loop_event, lost_event, relay
from sparkfleet.gateway.engine.replay import CONTINUATIONS, StreamRecord
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, UpstreamAnswer
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.engine.usage_event import UsageHider
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import largest_context, not_its_task
from sparkfleet.gateway.http_responses import JSON, id_headers
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.routing_table import ModelEntry
from sparkfleet.telemetry.metrics import GatewayMetrics

_OF_THE_BODY = (b"content-length", b"content-type")


class Delivery:
    """Takes admitted requests to the engines.

    Args:
        owners: of stored responses: those that an engine makes are noted there.
    """

    def __init__(
        self,
        picker: Picker,
        upstream: Upstream,
        queues: ModelQueues,
        observed: ObservedGroups,
        *,
        metrics: GatewayMetrics,
        owners: ResponseOwners,
    ) -> None:
        self._picker = picker
        self._upstream = upstream
        self._queues = queues
        self._observed = observed
        self._metrics = metrics
        self._owners = owners

    async def deliver(
        self,
        ctx: RequestContext,
        candidates: CandidateGroups,
        receive: Receive,
        send: Send,
        *,
        choose: Callable[[], CandidateGroups],
        held: HeldBody,
    ) -> None:
        """Delivers one request, and its answer up to the end.

        Args:
            ctx: the request, with what an engine gets.
            choose: returns its candidates by the present table.
            held: its body's share of the budget, given back once an engine answers.

        Raises:
            ApiError: no engine has begun to answer it.
            ClientGone: its client has left.
        """
        sent = perf_counter()
        async with WhileConnected(receive, ctx.direct):
            slot = await self._queues.enter(choose, candidates)
            ctx.slot = slot
            if ctx.explains:
                ctx.explanation = slot.candidates.explain(slot.found)
            assert ctx.outgoing is not None
            ctx.attempts = Attempts(
                self._picker,
                self._upstream,
                slot.candidates,
                slot,
                request=ctx.outgoing,
                on_answer=held.close,
                token_ids=ctx.replay is not None,
            )
            without_body = None
            if ctx.replay is not None:
                without_body = replace(ctx.outgoing, body=RequestBody(), model_span=None)
            ctx.outgoing = None
            answer = await ctx.attempts.answer()
            try:
                meter = self._begin_answer(ctx, answer, sent)
                if answer.is_error:
                    await _pass_error_on(ctx, answer, send, meter, slot.candidates.model)
                    return
                filters = _filters(ctx, answer, meter, slot.candidates.model)
                await send(_start(ctx, answer, filters))
                complete = await relay(answer, send, ctx.direct, filters)
                while not complete and (rest := await self._continue(ctx, choose, filters, without_body)):
                    answer.close()
                    answer = rest
                    complete = await relay(answer, send, ctx.direct, filters)
            finally:
                answer.close()
        last = filters.rest(whole=complete) + (b"" if complete else _cut_short(ctx, filters))
        if complete or ctx.is_stream:
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _continue(
        self,
        ctx: RequestContext,
        choose: Callable[[], CandidateGroups],
        filters: AnswerFilters,
        without_body: EngineRequest | None,
    ) -> UpstreamAnswer | None:
        """The answer of another group with the rest of a stream whose group was lost; None if there is none."""
        record, lost = filters.record, ctx.attempts
        if lost is None or (filters.loops is not None and filters.loops.found):
            return None
        self._observed.fail(lost.app)
        if record is None or without_body is None:
            return None
        ctx.lost_apps += (lost.app,)
        body = record.continuation()
        if body is not None and record.continuations < CONTINUATIONS:
            request = replace(without_body, body=RequestBody(body))
            if (answer := await self._ask_for_rest(ctx, choose, lost, request)) is not None:
                record.resume()
                ctx.replays += ("continued",)
                return answer
        ctx.replays += ("failed",)
        return None

    async def _ask_for_rest(
        self,
        ctx: RequestContext,
        choose: Callable[[], CandidateGroups],
        lost: Attempts,
        request: EngineRequest,
    ) -> UpstreamAnswer | None:
        assert ctx.slot is not None
        try:
            candidates = choose()
            same = tuple(
                one
                for one in candidates.groups
                if one.weights == lost.weights and one.app not in ctx.lost_apps
            )
            candidates = replace(candidates, groups=same, external=())
            attempts = Attempts(
                self._picker, self._upstream, candidates, ctx.slot, request=request, lost=lost
            )
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
        return loop_event(ctx.dialect, filters.meter, filters.loops.tokens, ctx.path)
    ctx.lost_engine()
    if filters.has_report:
        return b""
    return lost_event(ctx.dialect, filters.meter, ctx.path) if ctx.is_stream else b""


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
