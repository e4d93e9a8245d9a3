"""The request as an engine gets it: with its name of the model, and asked for the usage that the gateway counts."""

from __future__ import annotations

import json

from sparkfleet.gateway.asgi import Headers, Scope
from sparkfleet.gateway.body.model_span import model_span
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.body.scanner import INLINE_BYTES
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.engine.replay import plan_of
from sparkfleet.gateway.engine.upstream import Request, request_headers
from sparkfleet.gateway.request.usage_option import USAGE_PATHS
from sparkfleet.gateway.request_context import RequestContext
from sparkfleet.gateway.request_parser import RequestTarget, is_form


def engine_request(
    ctx: RequestContext, scope: Scope, body: RequestBody, target: RequestTarget, candidates: CandidateGroups
) -> Request:
    """The request to an engine of the candidates. Notes in `ctx` if its usage is to be hidden, and if it can be continued.

    Args:
        body: the client's.
        target: what it addresses: an alias of the model, or its name.
    """
    model = candidates.model
    if target.usage is not None and ctx.path in USAGE_PATHS:
        edit = target.usage
        body, target = body.replaced((edit.start, edit.end, edit.text.encode())), target.after(edit)
        ctx.hides_usage = True
    span = None  # external ones have a name of their own for the model, which goes there
    if target.model != model.name or candidates.external:
        span = _model_span(ctx.headers, body, target)
    if target.model != model.name and span is not None:
        name = _name_in(ctx.headers, model.name)
        body, span = body.replaced((*span, name)), (span[0], span[0] + len(name))
    if model.replay and 0 < body.size <= INLINE_BYTES and not is_form(ctx.headers):
        ctx.replay = plan_of(ctx.path, body)
    path, query = raw_path(scope), scope["query_string"]
    return Request(
        id=ctx.id,
        method=ctx.method,
        target=(path + b"?" + query if query else path).decode("ascii"),
        headers=request_headers(ctx.headers),
        body=body,
        model_span=span,
    )


def raw_path(scope: Scope) -> bytes:
    """The path of a request as it was sent."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _model_span(headers: Headers, body: RequestBody, target: RequestTarget) -> tuple[int, int] | None:
    """Place of the model's name in the body; None if it is in the query or in a header, which engines do not read."""
    if not body.size:
        return None
    if is_form(headers):
        return target.span
    return target.span or model_span(body.whole())  # that of a long body is known


def _name_in(headers: Headers, name: str) -> bytes:
    """A model's name as the body has it."""
    return name.encode() if is_form(headers) else json.dumps(name).encode()
