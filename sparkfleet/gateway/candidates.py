"""Candidate groups of a request, from the routing table: those that its key may use and that can serve it."""

from __future__ import annotations

import math
import time

from sparkfleet.gateway.access.allowed_paths import allowed_methods
from sparkfleet.gateway.candidate_groups import CandidateGroups
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.engine.external import EXTERNAL_PATHS
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.model_errors import (
    holder_not_ready,
    media_refused,
    none_ready_for,
    none_ready_so_large,
    not_ready,
    too_long,
    unable,
    unknown_model,
)
from sparkfleet.gateway.errors.request_errors import forbidden, no_such_path, response_gone
from sparkfleet.gateway.observed_groups import ObservedGroups
from sparkfleet.gateway.policy.absences import engine_needs_of
from sparkfleet.gateway.request.media import host_of, refused_url
from sparkfleet.gateway.request.requirements import Requirements, can, lacking, too_small
from sparkfleet.gateway.request_parser import RequestTarget, is_form
from sparkfleet.gateway.routing_table import GroupEntry, KeyEntry, ModelEntry, RoutingTable


def model_of(table: RoutingTable, key: KeyEntry, name: str) -> ModelEntry:
    """The model that a key's request names. Raises ApiError (404) if there is none, with the names of those that are."""
    model = table.named(name, key)
    if model is None:
        raise unknown_model(name, [entry.name for entry in table.visible_to(key)])
    return model


def candidates_of(
    request: ClientRequest, key: KeyEntry, model: ModelEntry, target: RequestTarget, observed: ObservedGroups
) -> CandidateGroups:
    """The candidates of a request among a model's groups.

    Raises:
        ApiError: its key may not use the model, no group can serve the request, or none that can is ready.
    """
    if not model.allows(key):
        raise forbidden(target.model, key.name)
    if not allowed_methods(request.path, model.endpoints):
        raise no_such_path(request.path)
    if refused := refused_url(target.needs.media, model.media_domains):
        raise media_refused(model, refused, host_of(refused))
    if target.group:
        model = _with_holder(model, target.group)
    external = _external(request, model, target.needs)
    try:
        able = _able(model, target.needs)
    except ApiError:
        if not external:
            raise
        able = ()
    engine_needs = engine_needs_of(request.path, target.needs)
    able = observed.absences.without(able, engine_needs)
    session = f"{key.id}:{request.session}" if request.session else ""
    return CandidateGroups(
        model,
        able,
        target.needs,
        observed,
        key.id,
        request.priority(key),
        session,
        external,
        engine_needs,
    )


def _with_holder(model: ModelEntry, app: str) -> ModelEntry:
    """The model with the group alone that has a stored response."""
    groups = tuple(one for one in model.groups if one.app == app)
    external = tuple(one for one in model.external if one.app == app)
    is_unloaded = (
        model.on_demand and model.state == "unloaded"
    )  # it would start without the responses that it had
    if (not groups and not external) or is_unloaded:
        raise response_gone()
    if groups and model.state == "ready" and not groups[0].ready:
        raise holder_not_ready(model, groups[0].name, time.time())
    return model.model_copy(update={"groups": groups, "external": external})


def _external(request: ClientRequest, model: ModelEntry, needs: Requirements) -> tuple[GroupEntry, ...]:
    """Endpoints outside the fleet that may serve a request, as far as their capabilities are known."""
    if not model.external or request.path not in EXTERNAL_PATHS or is_form(request.fields):
        return ()
    return tuple(one for one in model.external if can(one, needs) and too_small([one], needs) is None)


def _able(model: ModelEntry, needs: Requirements) -> tuple[GroupEntry, ...]:
    """The ready groups that may serve a request, by their known capabilities; none while it waits for their start."""
    lacks = lacking(model.groups, needs)
    if lacks:
        raise unable(model, lacks)
    largest = too_small(model.groups, needs)
    if largest is not None:
        raise too_long(model, needs.least_tokens, largest.context or 0, largest.name)
    if model.awaits_start:
        return ()
    if model.state != "ready":
        raise not_ready(model, time.time())
    ready = [group for group in model.groups if group.ready]
    able = tuple(group for group in ready if can(group, needs))
    if ready and not able:
        raise none_ready_for(model, needs.abilities, time.time())
    fitting = tuple(group for group in able if too_small([group], needs) is None)
    if (largest := too_small(able, needs)) is not None:
        later = [one for one in model.groups if not one.ready and can(one, needs)]
        if later and too_small(later, needs) is None:
            raise none_ready_so_large(model, max(later, key=_context), time.time())
        raise too_long(model, needs.least_tokens, largest.context or 0, largest.name)
    return fitting


def _context(group: GroupEntry) -> float:
    return math.inf if group.context is None else group.context
