"""The body of a request as an engine gets it: with its name of the model, and asked for the usage that is counted."""

from __future__ import annotations

import json
from typing import NamedTuple

from sparkfleet.gateway.asgi import Fields
from sparkfleet.gateway.body.model_span import model_span
from sparkfleet.gateway.body.request_body import RequestBody
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.request.usage_option import USAGE_PATHS
from sparkfleet.gateway.request_parser import RequestTarget, is_form


class EngineBody(NamedTuple):
    """A body after the gateway's edits."""

    body: RequestBody
    model_span: tuple[int, int] | None
    """Begin and end of the model's name in it; None if it is not there, or no engine has another name for the model."""
    asks_usage: bool
    """True if it asks for the usage of its stream in its client's place."""


def engine_body(
    path: str, fields: Fields, body: RequestBody, target: RequestTarget, candidates: CandidateGroups
) -> EngineBody:
    """The body for an engine of the candidates.

    Args:
        path: of the request, without the query.
        fields: its headers.
        body: the client's.
        target: what the body addresses, by an alias of the model or by its name.
        candidates: have the model's own name; those outside the fleet get theirs later, at the span.
    """
    asks_usage = target.usage is not None and path in USAGE_PATHS
    if target.usage is not None and asks_usage:
        edit = target.usage
        body, target = body.replaced((edit.start, edit.end, edit.text.encode())), target.after(edit)
    name, span = candidates.model.name, None
    if target.model != name or candidates.external:
        span = _model_span(fields, body, target)
    if target.model != name and span is not None:
        text = name.encode() if is_form(fields) else json.dumps(name).encode()
        body, span = body.replaced((*span, text)), (span[0], span[0] + len(text))
    return EngineBody(body, span, asks_usage)


def _model_span(fields: Fields, body: RequestBody, target: RequestTarget) -> tuple[int, int] | None:
    """Place of the model's name in the body; None if it is in the query or in a header, which engines do not read."""
    if not body.size:
        return None
    if is_form(fields):
        return target.span
    return target.span or model_span(body.whole())  # that of a long body is known
