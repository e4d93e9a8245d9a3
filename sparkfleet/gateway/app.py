"""The gateway's ASGI application: authenticates, selects the model's engine, and passes bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from http import HTTPStatus
from time import perf_counter
from typing import Any, NamedTuple

from sparkfleet.gateway.access.allowed_paths import allowed_methods
from sparkfleet.gateway.access.cors import allowed_origin, preflight, readable_by
from sparkfleet.gateway.access.keys import authenticate, expired_key
from sparkfleet.gateway.access.limits import (
    RequestLimits,
    check_encoding,
    check_headers,
    check_target,
    has_body,
    read_body,
)
from sparkfleet.gateway.access.response_owners import RESPONSES, ResponseOwners, response_of
from sparkfleet.gateway.admission.key_limiter import KeyLimiter
from sparkfleet.gateway.admission.model_queue import LONGEST_S, WAITING, ModelQueues
from sparkfleet.gateway.api_errors import (
    ApiError,
    draining,
    expired,
    forbidden,
    internal,
    media_refused,
    no_such_method,
    no_such_path,
    no_such_response,
    no_table,
    none_ready_for,
    not_its_task,
    not_ready,
    too_long,
    unable,
    unauthorised,
    unknown_model,
)
from sparkfleet.gateway.asgi import (
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    WhileConnected,
    direct_writer,
    respond,
    respond_early,
)
from sparkfleet.gateway.body.attribution_line import without_changing_digits
from sparkfleet.gateway.body.body_budget import BUDGET_BYTES, BodyBudget, HeldBody
from sparkfleet.gateway.body.model_span import model_span
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.body.scanner import INLINE_BYTES, BodyScanner
from sparkfleet.gateway.choice import Choice
from sparkfleet.gateway.engine.endpoints import Picker
from sparkfleet.gateway.engine.engine_error import in_dialect, lacks_path, read_error
from sparkfleet.gateway.engine.external import EXTERNAL_PATHS, ExternalPicker
from sparkfleet.gateway.engine.loop_detector import LoopDetector
from sparkfleet.gateway.engine.proxy import AnswerPath, Attempts, loop_event, lost_event, relay
from sparkfleet.gateway.engine.replay import CONTINUATIONS, StreamRecord, plan_of
from sparkfleet.gateway.engine.upstream import Request, Upstream, UpstreamAnswer, request_headers
from sparkfleet.gateway.engine.usage import UsageMeter
from sparkfleet.gateway.engine.usage_event import UsageHider
from sparkfleet.gateway.in_flight import InFlight
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.page.text_capture import BODY_BYTES, prompt_of
from sparkfleet.gateway.report import KeyUsage
from sparkfleet.gateway.request.media import host_of, refused_url
from sparkfleet.gateway.request.requirements import Requirements, can, lacking, too_small
from sparkfleet.gateway.request.usage_option import USAGE_PATHS
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER, RequestTarget, is_form
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, RoutingTable
from sparkfleet.telemetry.metrics import GatewayMetrics

access_log = logging.getLogger("sparkfleet.gateway.access")
log = logging.getLogger("sparkfleet.gateway")

_LOCAL_METHODS = ("GET", "HEAD")
_NOT_COUNTED = range(400, 499)
"""Statuses of requests that cost nothing: an engine refused them. 499 is a client that left."""
BODIES_HELD = 4
"""Longest requests that the budget of bodies holds at once, at least."""
_MODELS = "/v1/models"
_ROOT = ("/v1", "/v1/")
_HEALTH = ("/healthz", "/health", "/v1/health")
_INDEX = {
    "object": "api",
    "server": "sparkfleet",
    "models": _MODELS,
    "openai": ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"],
    "anthropic": ["/v1/messages", "/v1/messages/count_tokens"],
    "health": "/health",
}


class GatewayApp:
    """The ASGI application.

    Args:
        picker: finds the engines of groups.
        metrics: counts requests.
        table: the first routing table, if there is one.
        max_body_bytes: longest request that is accepted.
        max_body_s: time limit for a request to arrive.
        budget_bytes: bytes of bodies that are held at once.
        waiting: requests that wait for one model, at most.
        longest_s: seconds that each of them waits, at most.
        origins: origins of other sites whose scripts may read answers.
        page: answers what is not of the API; None: nothing does.
    """

    def __init__(
        self,
        picker: Picker,
        metrics: GatewayMetrics | None = None,
        *,
        table: RoutingTable | None = None,
        max_body_bytes: int = RequestLimits().body_bytes,
        max_body_s: float = RequestLimits().body_s,
        budget_bytes: int = BUDGET_BYTES,
        waiting: int = WAITING,
        longest_s: float = LONGEST_S,
        origins: Collection[str] = (),
        page: PageApp | None = None,
    ) -> None:
        self.metrics = metrics or GatewayMetrics()
        self._picker = ExternalPicker(picker)
        self._page = page
        self._table = table or RoutingTable()
        self._limits = RequestLimits(body_bytes=max_body_bytes, body_s=max_body_s)
        self._upstream = Upstream()
        self._loads = InFlight()
        self._queues = ModelQueues(waiting, longest_s)
        self._loads.on_end = self._queues.pump
        self._bodies = BodyBudget(budget_bytes)
        self._scanner = BodyScanner()
        self._owners = ResponseOwners()
        self.origins = frozenset(origins)
        """Origins of other sites whose scripts may read answers."""
        self._limiter = KeyLimiter()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._usage: dict[tuple[str, str], list[int]] = {}
        """Requests, those without a count, prompt tokens and answer tokens, by key and model."""
        self.keys_used: dict[str, float] = {}
        """Unix seconds of the last request with each key, by its id."""

    @property
    def table(self) -> RoutingTable:
        """Replaces the routing table. A table of version 0 is empty and never replaces one with content."""
        return self._table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        if table.version:
            self._table = table
            self._limiter.keep(key.id for key in table.keys)
            apps = [
                group.app for entry in table.models.values() for group in (*entry.groups, *entry.external)
            ]
            self._loads.keep(apps, table.models)
            listed = {
                one.external.url for entry in table.models.values() for one in entry.external if one.external
            }
            self._upstream.trouble = {
                url: why for url, why in self._upstream.trouble.items() if url in listed
            }
            self._queues.refresh()

    def limit_bodies(self, max_body_bytes: int) -> None:
        """Accepts requests up to this length from now on."""
        self._limits = RequestLimits(body_bytes=max_body_bytes, body_s=self._limits.body_s)
        self._bodies.total = max(self._bodies.total, BODIES_HELD * max_body_bytes)

    @property
    def external_trouble(self) -> str:
        """The last failures of endpoints outside the fleet, in words; "" if each answered its last request."""
        return "; ".join(f"{url}: {why}" for url, why in self._upstream.trouble.items())

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._in_flight

    @property
    def bytes_held(self) -> int:
        """Bytes of bodies that no engine has begun to answer."""
        return self._bodies.held

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new requests, and waits for those in flight. True if all ended in time."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        """Closes the connections to the engines, and ends the processes that read bodies."""
        await self._upstream.aclose()
        await self._scanner.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "websocket":
            return await _refuse_websocket(receive, send)
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        if scope["path"] in _HEALTH:
            return await self._health(scope, send)
        if self._page is not None and self._page.owns(scope["path"]):
            return await self._page(scope, receive, send, self._table, self._queues.outlook)
        if origin := allowed_origin(scope["headers"], self.origins):
            send = readable_by(send, origin)
        if scope["path"] in _ROOT and scope["method"] in _LOCAL_METHODS:
            return await respond(send, 200, [_JSON], _INDEX_JSON, head=scope["method"] == "HEAD")
        exchange = RequestContext(scope["method"], scope["path"], scope["headers"])
        self._begin()
        try:
            await self._guarded(exchange, scope, receive, send)
        finally:
            self._end(exchange)

    def _begin(self) -> None:
        self._in_flight += 1
        self._idle.clear()

    def _end(self, exchange: RequestContext) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()
        exchange.finish(self.metrics)
        self._count(exchange)
        if self._page is not None:
            self._page.note(exchange.log_line(), exchange.prompt, exchange.meter)
        if access_log.isEnabledFor(logging.INFO):
            access_log.info("%s", json.dumps(exchange.log_line()))

    def _count(self, exchange: RequestContext) -> None:
        """Counts a request that an engine has begun to answer."""
        if exchange.key is None or exchange.meter is None or exchange.status in _NOT_COUNTED:
            return
        usage = exchange.usage
        total = self._usage.setdefault((exchange.key.name, exchange.model), [0, 0, 0, 0])
        total[0] += 1
        total[1] += usage.input is None and usage.output is None
        total[2] += usage.input or 0
        total[3] += usage.output or 0

    @property
    def usage(self) -> tuple[KeyUsage, ...]:
        """Usage by key and model since the start."""
        return tuple(
            KeyUsage(
                key=key, model=model, requests=total[0], uncounted=total[1], input=total[2], output=total[3]
            )
            for (key, model), total in self._usage.items()
        )

    async def _guarded(self, exchange: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(exchange, scope, receive, send)
        except ClientGone:
            exchange.lost_client()
        except asyncio.CancelledError:
            exchange.lost_client("shutdown")
            raise
        except ApiError as refusal:
            await _refuse(exchange, refusal, receive, send)
        except Exception:
            log.exception("request %s failed", exchange.id)
            if exchange.status:
                exchange.kind = "internal"
                raise  # the server cuts the connection
            await _refuse(exchange, internal(), receive, send)

    async def _answer(self, exchange: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        is_local = exchange.path == _MODELS or exchange.path.startswith(_MODELS + "/")
        allowed = _LOCAL_METHODS if is_local else allowed_methods(exchange.path, self._table.endpoints)
        if exchange.method == "OPTIONS" and allowed:
            exchange.status = 204
            origin = allowed_origin(exchange.headers, self.origins)
            fields = [(b"allow", ", ".join(allowed).encode()), *_id_headers(exchange)]
            fields += preflight(exchange.headers, origin)
            return await respond(send, 204, fields, b"")
        if not exchange.path.startswith("/v1/"):
            raise no_such_path(exchange.path)
        table = self._admit(exchange)
        if not allowed:
            raise no_such_path(exchange.path)
        if exchange.method not in allowed:
            raise no_such_method(exchange.method, allowed)
        if is_local:
            return await _models(exchange, table, send)
        return await self._forward(exchange, table, scope, receive, send)

    def _admit(self, exchange: RequestContext) -> RoutingTable:
        if self._draining:
            raise draining()
        if not self._table.version:
            raise no_table()
        check_headers(exchange.headers, self._limits)
        exchange.key = authenticate(exchange.headers, self._table.keys)
        if exchange.key is None:
            if old := expired_key(exchange.headers, self._table.keys):
                raise expired(old.name)
            given = any(name in (b"authorization", b"x-api-key") for name, _ in exchange.headers)
            raise unauthorised(given=given)
        self.keys_used[exchange.key.id] = time.time()
        return self._table

    async def _forward(
        self, exchange: RequestContext, table: RoutingTable, scope: Scope, receive: Receive, send: Send
    ) -> None:
        check_target(_raw_path(scope), scope["query_string"])
        check_encoding(exchange.headers)
        assert exchange.key is not None
        with (
            closing(self._limiter.admit(exchange.key)) as exchange.admitted,
            closing(HeldBody(self._bodies, exchange.key.id)) as held,
        ):
            body = await read_body(exchange.headers, receive, self._limits, held)
            exchange.body_read = True
            if self._page is not None and self._page.capture.until and body.size <= BODY_BYTES:
                exchange.prompt = prompt_of(body.whole())
            if exchange.dialect == "anthropic":
                body = without_changing_digits(body)
            wanted = await self._scan(exchange, scope["query_string"], receive, body)
            for response in (response_of(exchange.path), wanted.previous):
                if self._owners.belongs_to_another(response, exchange.key.id):
                    raise no_such_response(response)
            choice = self._choose(exchange, table, wanted)
            exchange.admitted.charge(wanted.needs.prompt_tokens)
            if exchange.explains == "only":
                return await _explain(exchange, choice, send)
            if wanted.usage is not None and exchange.path in USAGE_PATHS:
                edit = wanted.usage
                body, wanted = body.replaced(edit.start, edit.end, edit.text.encode()), wanted.after(edit)
                exchange.hides_usage = True
            span = None
            if wanted.model != choice.model.name or choice.spare:
                span = _model_span(exchange.headers, body, wanted)
            if wanted.model != choice.model.name and span is not None:
                name = _name_in(exchange.headers, choice.model.name)
                body, span = body.replaced(*span, name), (span[0], span[0] + len(name))
            if choice.model.replay and body.size <= INLINE_BYTES and not is_form(exchange.headers):
                exchange.replay = plan_of(exchange.path, body)
            exchange.request = _request(exchange, scope, body, span)
            exchange.direct = direct_writer(scope)
            del body  # only the attempts keep it, until an engine answers
            try:
                with self.metrics.in_flight.labels(exchange.model).track_inprogress():
                    await self._pass_on(exchange, _Routed(wanted, choice), held, receive, send)
            finally:
                if exchange.slot is not None:
                    exchange.slot.close()
        return None

    async def _scan(
        self, exchange: RequestContext, query: bytes, receive: Receive, body: RequestBody
    ) -> RequestTarget:
        assert exchange.key is not None
        if body.size <= INLINE_BYTES:
            return await self._scanner.route(query, exchange.headers, body, exchange.key.id)
        async with WhileConnected(receive):
            return await self._scanner.route(query, exchange.headers, body, exchange.key.id)

    def _choose(self, exchange: RequestContext, table: RoutingTable, wanted: RequestTarget) -> Choice:
        model = _resolve(table, exchange, wanted.model)
        if not allowed_methods(exchange.path, model.endpoints):
            raise no_such_path(exchange.path)
        if refused := refused_url(wanted.needs.media, model.media_domains):
            raise media_refused(model, refused, host_of(refused))
        assert exchange.key is not None
        spare = _spare(exchange, model, wanted.needs)
        try:
            able = _able(model, wanted.needs)
        except ApiError:
            if not spare:
                raise
            able = ()
        session = f"{exchange.key.id}:{exchange.session}" if exchange.session else ""
        return Choice(
            model, able, wanted.needs, self._loads, exchange.key.id, exchange.priority, session, spare
        )

    async def _pass_on(
        self,
        exchange: RequestContext,
        routed: _Routed,
        held: HeldBody,
        receive: Receive,
        send: Send,
    ) -> None:
        sent = perf_counter()
        async with WhileConnected(receive, exchange.direct):
            wanted = routed.wanted
            slot = await self._queues.enter(
                lambda: self._choose(exchange, self._table, wanted), routed.choice
            )
            exchange.slot = slot
            if exchange.explains:
                exchange.explanation = slot.choice.explain(slot.found)
            assert exchange.request is not None
            exchange.attempts = Attempts(
                self._picker,
                self._upstream,
                slot.choice,
                slot,
                request=exchange.request,
                on_answer=held.close,
                token_ids=exchange.replay is not None,
            )
            asked = None
            if exchange.replay is not None:
                asked = replace(exchange.request, body=RequestBody(), model_span=None)
            exchange.request = None
            answer = await exchange.attempts.answer()
            try:
                meter = self._begin_answer(exchange, answer, sent)
                if answer.is_error:
                    await _pass_error_on(exchange, answer, send, meter)
                    return
                path = _path(exchange, answer, meter, slot.choice.model)
                await send(_start(exchange, answer, path))
                complete = await relay(answer, send, exchange.direct, path)
                while not complete and (rest := await self._continued(exchange, wanted, path, asked)):
                    answer.close()
                    answer = rest
                    complete = await relay(answer, send, exchange.direct, path)
            finally:
                answer.close()
        last = path.rest(whole=complete) + (b"" if complete else _cut_short(exchange, path))
        if complete or last:
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _continued(
        self, exchange: RequestContext, wanted: RequestTarget, path: AnswerPath, asked: Request | None
    ) -> UpstreamAnswer | None:
        """The answer of another group with the rest of a stream whose group was lost; None if there is none."""
        record, lost = path.record, exchange.attempts
        if record is None or asked is None or lost is None or (path.loops is not None and path.loops.found):
            return None
        self._loads.fail(lost.app)
        exchange.lost_apps += (lost.app,)
        body = record.continuation()
        if body is not None and record.continuations < CONTINUATIONS:
            request = replace(asked, body=RequestBody(body))
            if (answer := await self._ask_for_rest(exchange, wanted, lost.weights, request)) is not None:
                record.resume()
                exchange.replays += ("continued",)
                return answer
        exchange.replays += ("failed",)
        return None

    async def _ask_for_rest(
        self, exchange: RequestContext, wanted: RequestTarget, weights: str, request: Request
    ) -> UpstreamAnswer | None:
        assert exchange.slot is not None
        try:
            choice = self._choose(exchange, self._table, wanted)
            same = tuple(
                one for one in choice.groups if one.weights == weights and one.app not in exchange.lost_apps
            )
            choice = replace(choice, groups=same, spare=())
            attempts = Attempts(
                self._picker, self._upstream, choice, exchange.slot, request=request, continues=True
            )
            answer = await attempts.answer()
        except ApiError:
            return None
        if not answer.is_stream or answer.status != HTTPStatus.OK:
            answer.close()
            return None
        attempts.retries += exchange.attempts.retries if exchange.attempts is not None else 0
        exchange.attempts = attempts
        exchange.slot.answered(is_stream=True)
        return answer

    def _begin_answer(self, exchange: RequestContext, answer: UpstreamAnswer, sent: float) -> UsageMeter:
        exchange.status = answer.status
        if answer.status >= 400:
            exchange.kind = "engine_error" if answer.status >= 500 else "engine_refused"
        assert exchange.slot is not None
        exchange.slot.answered(is_stream=answer.is_stream)
        on_gap = None
        if answer.is_stream:
            exchange.is_stream = True
            self.metrics.ttft.labels(exchange.model).observe(perf_counter() - sent)
            on_gap = self.metrics.itl.labels(exchange.model).observe
        if exchange.path == RESPONSES and exchange.key is not None:
            self._owners.note(answer.first, exchange.key.id)
        exchange.meter = UsageMeter(sent, on_gap)
        return exchange.meter

    async def _health(self, scope: Scope, send: Send) -> None:
        state = "draining" if self._draining else "ok" if self._table.version else "starting"
        body = json.dumps({"status": state}).encode()
        head = scope["method"] == "HEAD"
        await respond(send, 200 if state == "ok" else 503, [_JSON], body, head=head)


class _Routed(NamedTuple):
    """A request's target and its candidates."""

    wanted: RequestTarget
    choice: Choice


_JSON = (b"content-type", b"application/json")
_INDEX_JSON = json.dumps(_INDEX).encode()
_OF_THE_BODY = (b"content-length", b"content-type")


def _path(
    exchange: RequestContext, answer: UpstreamAnswer, meter: UsageMeter, model: ModelEntry
) -> AnswerPath:
    """Way of an answer's bytes: a stream is searched for loops, freed of usage, and recorded, if it is to be."""
    if not answer.is_stream:
        return AnswerPath(meter)
    can_continue = exchange.replay is not None and exchange.attempts is not None and exchange.attempts.weights
    return AnswerPath(
        meter,
        LoopDetector(model.loop_tokens) if model.loop_tokens else None,
        UsageHider(nulls=answer.is_external) if exchange.hides_usage else None,
        StreamRecord(exchange.replay) if exchange.replay is not None and can_continue else None,
    )


def _cut_short(exchange: RequestContext, path: AnswerPath) -> bytes:
    """Records an answer without its end. Returns the last event of a stream; another answer is cut with its connection."""
    if path.loops is not None and path.loops.found:
        exchange.found_loop()
        return loop_event(exchange.dialect, path.meter, path.loops.tokens)
    exchange.lost_engine()
    return lost_event(exchange.dialect, path.meter) if exchange.is_stream else b""


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _request(
    exchange: RequestContext, scope: Scope, body: RequestBody, span: tuple[int, int] | None
) -> Request:
    path, query = _raw_path(scope), scope["query_string"]
    return Request(
        id=exchange.id,
        method=exchange.method,
        target=(path + b"?" + query if query else path).decode("ascii"),
        headers=request_headers(exchange.headers),
        body=body,
        model_span=span,
    )


def _model_span(headers: Headers, body: RequestBody, wanted: RequestTarget) -> tuple[int, int] | None:
    """Place of the model's name in the body; None if it is in the query or in a header, which engines do not read."""
    if not body.size:
        return None
    if is_form(headers):
        return wanted.span
    return wanted.span or model_span(body.whole())  # that of a long body is known


def _name_in(headers: Headers, name: str) -> bytes:
    """A model's name as the body has it."""
    return name.encode() if is_form(headers) else json.dumps(name).encode()


def _resolve(table: RoutingTable, exchange: RequestContext, name: str) -> ModelEntry:
    assert exchange.key is not None
    model = table.named(name, exchange.key)
    if model is None:
        raise unknown_model(name, [entry.name for entry in table.visible_to(exchange.key)])
    exchange.model = model.name
    if not model.allows(exchange.key):
        raise forbidden(name, exchange.key.name)
    return model


def _spare(exchange: RequestContext, model: ModelEntry, needs: Requirements) -> tuple[GroupEntry, ...]:
    """Endpoints outside the fleet that may serve a request, as far as their capabilities are known."""
    if not model.external or exchange.path not in EXTERNAL_PATHS or is_form(exchange.headers):
        return ()
    return tuple(one for one in model.external if can(one, needs) and too_small([one], needs) is None)


def _able(model: ModelEntry, needs: Requirements) -> tuple[GroupEntry, ...]:
    """The ready groups that may serve a request, by their known capabilities."""
    lacks = lacking(model.groups, needs)
    if lacks:
        raise unable(model, lacks)
    largest = too_small(model.groups, needs)
    if largest is not None:
        raise too_long(model, needs.least_tokens, largest.context or 0, largest.app)
    if model.state != "ready":
        raise not_ready(model, time.time())
    ready = [group for group in model.groups if group.ready]
    able = tuple(group for group in ready if can(group, needs))
    if ready and not able:
        raise none_ready_for(model, needs.abilities, time.time())
    return able


async def _explain(exchange: RequestContext, choice: Choice, send: Send) -> None:
    exchange.status = 200
    body = json.dumps(choice.explain(choice.forecasts()), indent=1).encode()
    await respond(send, 200, [_JSON, *_id_headers(exchange)], body, head=exchange.head)


async def _models(exchange: RequestContext, table: RoutingTable, send: Send) -> None:
    assert exchange.key is not None
    entries = table.visible_to(exchange.key)
    listed = [
        _model(entry, name) for entry in entries for name in (entry.name, *_shown_aliases(entry, table))
    ]
    document: dict[str, Any] = {"object": "list", "data": listed}
    wanted = exchange.path.removeprefix(_MODELS).removeprefix("/")
    if wanted:
        entry = table.named(wanted, exchange.key)
        if entry is None or not entry.allows(exchange.key):
            raise unknown_model(wanted, [entry.name for entry in entries])
        document = _model(entry, wanted)
    exchange.status = 200
    body = json.dumps(document).encode()
    await respond(send, 200, [_JSON, *_id_headers(exchange)], body, head=exchange.head)


def _shown_aliases(entry: ModelEntry, table: RoutingTable) -> tuple[str, ...]:
    return tuple(name for name in entry.aliases if name not in table.models)


def _model(entry: ModelEntry, name: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": "sparkfleet",
        "state": entry.state,
    }
    if name != entry.name:
        document["alias_of"] = entry.name
    if entry.context is not None:
        document["max_model_len"] = entry.context  # the name that vLLM and SGLang use
    return document


async def _pass_error_on(
    exchange: RequestContext, answer: UpstreamAnswer, send: Send, meter: UsageMeter
) -> None:
    given = await read_error(answer)
    if lacks_path(given, answer.status):
        refusal = not_its_task(exchange.model, exchange.path)
        exchange.status, exchange.kind = refusal.status, refusal.kind
        body = refusal.body(exchange.dialect)
    else:
        body = in_dialect(given, answer.status, exchange.dialect)
    meter.feed(body)
    headers = [header for header in answer.headers() if header[0] not in _OF_THE_BODY]
    await respond(send, exchange.status, [*headers, _JSON, *_id_headers(exchange)], body)


def _start(exchange: RequestContext, answer: UpstreamAnswer, path: AnswerPath) -> dict[str, Any]:
    headers = [*answer.headers(), *_id_headers(exchange)]
    if path.is_changed:  # its length changes, too
        headers = [one for one in headers if one[0] != b"content-length"]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


async def _refuse(exchange: RequestContext, refusal: ApiError, receive: Receive, send: Send) -> None:
    exchange.status, exchange.kind = refusal.status, refusal.kind
    headers = [_JSON, *_id_headers(exchange), *refusal.headers]
    body = refusal.body(exchange.dialect)
    if exchange.body_read or not has_body(exchange.headers):
        await respond(send, refusal.status, headers, body, head=exchange.head)
    else:
        await respond_early(receive, send, refusal.status, headers, body)


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": "websockets are not served here"})


def _id_headers(exchange: RequestContext) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", exchange.id.encode())]
    if exchange.client_id:
        headers.append((b"x-client-request-id", exchange.client_id.encode()))
    if exchange.explanation:
        headers.append((EXPLAIN_HEADER, json.dumps(exchange.explanation).encode()))
    return headers
