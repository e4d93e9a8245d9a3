"""The way of an admitted request to an engine, and of the answer's bytes back, the rest of a lost stream included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from sparkfleet.gateway.access.response_owners import RESPONSES, ResponseOwners, StoredResponse
from sparkfleet.gateway.accounting.request_record import RequestRecord
from sparkfleet.gateway.admission.model_queue import ModelQueues
from sparkfleet.gateway.asgi import DirectWriter, Receive, Send, WhileConnected, respond
from sparkfleet.gateway.body.body_budget import HeldBody
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.engine.attempts import Attempts
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.engine.engine_error import in_dialect, lacks_path, read_error, with_context
from sparkfleet.gateway.engine.exchange import EngineExchange
from sparkfleet.gateway.engine.failure_event import FailureWatch
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.relay import AnswerFilters, loop_event, lost_event, relay
from sparkfleet.gateway.engine.replay import CONTINUATIONS, ContinuableRequest, StreamRecord
from sparkfleet.gateway.engine.upstream import EngineRequest, Upstream, UpstreamAnswer
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.engine.usage_event import UsageHider
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import largest_context, not_its_task
from sparkfleet.gateway.http_responses import JSON, id_headers
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.routing_table import KeyEntry, ModelEntry
from sparkfleet.gateway.start_wait import StartWait
from sparkfleet.telemetry.metrics import GatewayMetrics

_OF_THE_BODY = (b"content-length", b"content-type")


class PreparedRequest(NamedTuple):
    """A request that has candidates: what its delivery needs of it, and does not change."""

    record: RequestRecord
    """Its outcome is noted there."""
    key: KeyEntry
    choose: Callable[[], CandidateGroups]
    """Returns its candidates by the present table. Raises ApiError if there are none now."""
    direct: DirectWriter | None
    """Writes the answer to the client's connection; None if its server has no such."""
    hides_usage: bool
    """True if the usage of its stream was asked for in its client's place."""
    replay: ContinuableRequest | None
    """Its continuation on another group; None if it is not to be continued."""
    start: StartWait | None = None
    """Its wait for a start; None if its model is not on demand."""

    @property
    def begun(self) -> bool:
        """True if its client has the head of a stream before an engine has answered."""
        return self.start is not None and self.start.stream is not None and self.start.stream.has_begun


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
        prepared: PreparedRequest,
        candidates: CandidateGroups,
        outgoing: EngineRequest,
        receive: Receive,
        send: Send,
        *,
        held: HeldBody,
    ) -> None:
        """Delivers one request, and its answer up to the end.

        Args:
            candidates: the groups that it may go to by the table at its arrival.
            outgoing: what an engine gets.
            held: its body's share of the budget, given back once an engine answers.

        Raises:
            ApiError: no engine has begun to answer it.
            ClientGone: its client has left.
        """
        sent = perf_counter()
        record = prepared.record
        async with WhileConnected(receive, prepared.direct):
            slot = await self._queues.enter(prepared.choose, candidates, prepared.start)
            if candidates.wait_for_start:
                sent = perf_counter()  # a TTFT has no start of a model in it
            attempts = Attempts(
                self._picker,
                self._upstream,
                slot.candidates,
                slot,
                request=outgoing,
                on_answer=held.close,
                token_ids=prepared.replay is not None,
            )
            record.exchange = exchange = EngineExchange(slot, attempts)
            if record.request.explains:
                record.explanation = slot.candidates.explain(slot.found)
            without_body = None
            if prepared.replay is not None:
                without_body = replace(outgoing, body=RequestBody(), model_span=None)
            del outgoing
            answer = await attempts.answer()
            try:
                meter = self._begin_answer(prepared, exchange, answer, sent)
                if answer.is_error:
                    await _pass_error_on(record, answer, send, meter, slot.candidates.model)
                    return
                if not answer.is_stream and prepared.begun:
                    # It is no part of the stream that its client reads.
                    prepared = prepared._replace(direct=None)
                filters = _filters(prepared, exchange, answer, meter)
                await send(_start(record, answer, filters))
                complete = await relay(answer, send, prepared.direct, filters)
                while not complete and (
                    rest := await self._continue(exchange, prepared.choose, filters, without_body)
                ):
                    answer.close()
                    answer = rest
                    complete = await relay(answer, send, prepared.direct, filters)
            finally:
                answer.close()
        last = filters.rest(whole=complete)
        if not complete:
            last += _cut_short(record, exchange, filters)
        if complete or exchange.is_stream:
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _continue(
        self,
        exchange: EngineExchange,
        choose: Callable[[], CandidateGroups],
        filters: AnswerFilters,
        without_body: EngineRequest | None,
    ) -> UpstreamAnswer | None:
        """The answer of another group with the rest of a stream whose group was lost; None if there is none."""
        if filters.loops is not None and filters.loops.found:
            return None
        lost, record = exchange.attempts.app, filters.record
        self._observed.fail(lost)
        if record is None or without_body is None:
            return None
        exchange.lost_apps += (lost,)
        body = record.continuation()
        if body is not None and record.continuations < CONTINUATIONS:
            request = replace(without_body, body=RequestBody(body))
            if (answer := await self._ask_for_rest(exchange, choose, request)) is not None:
                record.resume()
                exchange.replays += ("continued",)
                return answer
        exchange.replays += ("failed",)
        return None

    async def _ask_for_rest(
        self, exchange: EngineExchange, choose: Callable[[], CandidateGroups], request: EngineRequest
    ) -> UpstreamAnswer | None:
        lost = exchange.attempts
        try:
            candidates = choose()
            same = tuple(
                one
                for one in candidates.groups
                if one.weights == lost.weights and one.app not in exchange.lost_apps
            )
            candidates = replace(candidates, groups=same, external=())
            attempts = Attempts(
                self._picker, self._upstream, candidates, exchange.slot, request=request, lost=lost
            )
            answer = await attempts.answer()
        except ApiError:
            return None
        if not answer.is_stream or answer.status != 200:
            answer.close()
            return None
        attempts.retries += lost.retries
        exchange.attempts = attempts
        exchange.slot.note_answer(is_stream=True)
        return answer

    def _begin_answer(
        self, prepared: PreparedRequest, exchange: EngineExchange, answer: UpstreamAnswer, sent: float
    ) -> UsageMeter:
        record = prepared.record
        record.status = answer.status
        if answer.status >= 400:
            record.kind = "engine_error" if answer.status >= 500 else "engine_refused"
        exchange.slot.note_answer(is_stream=answer.is_stream, is_good=answer.status < 400)
        on_gaps = None
        if answer.is_stream:
            exchange.is_stream = True
            self._metrics.ttft[record.model].observe(perf_counter() - sent)
            on_gaps = self._metrics.itl[record.model].observe_all
        if record.request.path == RESPONSES and answer.status < 400:
            made = StoredResponse(prepared.key.id, record.model, exchange.attempts.app)
            self._owners.note(answer.first, made)
        exchange.meter = meter = UsageMeter(sent, on_gaps)
        return meter


def _filters(
    prepared: PreparedRequest, exchange: EngineExchange, answer: UpstreamAnswer, meter: UsageMeter
) -> AnswerFilters:
    """Filters of an answer: a stream is searched for loops and failures, freed of usage, recorded."""
    if not answer.is_stream:
        return AnswerFilters(meter)
    loop_tokens = exchange.slot.candidates.model.loop_tokens
    can_continue = prepared.replay is not None and exchange.attempts.weights
    record = StreamRecord(prepared.replay) if prepared.replay is not None and can_continue else None
    return AnswerFilters(
        meter,
        LoopDetector(loop_tokens) if loop_tokens else None,
        UsageHider(nulls=answer.is_external) if prepared.hides_usage else None,
        record,
        FailureWatch() if record is None else None,
    )


def _cut_short(record: RequestRecord, exchange: EngineExchange, filters: AnswerFilters) -> bytes:
    """Records an answer without its end. Returns the last event of a stream; another answer is cut with its connection."""
    request = record.request
    if filters.loops is not None and filters.loops.found:
        record.note_loop()
        return loop_event(request.dialect, filters.meter, filters.loops.tokens, request.path)
    record.note_engine_lost()
    if filters.has_report or not exchange.is_stream:
        return b""
    return lost_event(request.dialect, filters.meter, request.path)


async def _pass_error_on(
    record: RequestRecord, answer: UpstreamAnswer, send: Send, meter: UsageMeter, model: ModelEntry
) -> None:
    dialect = record.request.dialect
    given = await read_error(answer) if answer.error is None else answer.error
    if lacks_path(given, answer.status):
        refusal = not_its_task(record.model, record.request.path)
        record.status, record.kind = refusal.status, refusal.kind
        body = refusal.body(dialect)
    else:
        body = in_dialect(given, answer.status, dialect)
        if answer.unfit == "context":
            body = with_context(body, dialect, largest_context(model))
    meter.feed(body)
    headers = [header for header in answer.headers() if header[0] not in _OF_THE_BODY]
    await respond(send, record.status, [*headers, JSON, *id_headers(record)], body)


def _start(record: RequestRecord, answer: UpstreamAnswer, filters: AnswerFilters) -> dict[str, Any]:
    headers = [*answer.headers(), *id_headers(record)]
    if filters.is_changed:  # its length changes, too
        headers = [one for one in headers if one[0] != b"content-length"]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}
