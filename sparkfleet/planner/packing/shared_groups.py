"""Groups of a variant, each sized for its share of the requests that the deployment sets. Pure.

Groups that run keep their share and their shape as long as the deployment sets as many requests: another number of replicas
adds groups or ends some, and starts no engine again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparkfleet.planner.capacity.memory_ledger import MemoryLedger
from sparkfleet.planner.capacity.proposal import VariantCase
from sparkfleet.planner.engine_args.user_overrides import requests_given
from sparkfleet.planner.packing.planning_context import PlanningContext
from sparkfleet.planner.packing.served_variant import ServedVariant, nodes_and_bytes_of, noted
from sparkfleet.planner.packing.variant_planner import VariantPlanner
from sparkfleet.planner.types.group_share import share_that_runs
from sparkfleet.planner.types.plan import Candidate, GroupPlan
from sparkfleet.specs.parallel import Parallel

_FOLLOWS = ("image", "memory_fraction", "memory_fractions", "media_domains")
"""Fields of a candidate that do not depend on its sizes: what runs has digests for tags."""


def shared_groups(
    case: VariantCase, number: int, planning: PlanningContext, ledger: MemoryLedger
) -> ServedVariant:
    """The groups of a variant on the ledger; `number`: which of its deployment's variants it is."""
    given = requests_given(case.variant.engine_args)
    case = replace(case, each=given)  # an argument is of each engine
    running = planning.groups_of(case.spec.name, number)
    for as_it_runs in _as_it_runs(case, running):
        found = _attempt(as_it_runs, number, planning, ledger)
        is_open = as_it_runs.variant == case.variant  # its shape is chosen for that many replicas
        if _goes_on(found.groups, running) and (is_open or _is_apart(found.groups)):
            return found._replace(groups=_with_shortage(found.groups, as_it_runs))
        _take_back(case, found.groups, ledger)
    found = _attempt(case, number, planning, ledger)
    while case.variant.replicas is None and len(found.groups) < _expected(case, found.groups):
        # Fewer groups than there are nodes for have larger shares.
        _take_back(case, found.groups, ledger)
        case = replace(case, among=len(found.groups))
        found = _attempt(case, number, planning, ledger)
    return found


def _as_it_runs(case: VariantCase, running: Sequence[GroupPlan]) -> Iterator[VariantCase]:
    """The variant with the share that runs; and, if it sets `replicas`, with the shape that runs."""
    variant = case.variant
    is_shared = variant.concurrency is not None and case.each is None
    each = share_that_runs(variant, running) if is_shared else case.each
    if not running or (is_shared and each is None):
        return
    case = replace(case, each=each)
    yield case
    splits = {group.choice.candidate.shape.split for group in running}
    if variant.replicas is not None and variant.parallel is None and len(splits) == 1:
        parallel = Parallel.model_validate(splits.pop()._asdict())
        yield replace(case, variant=variant.model_copy(update={"parallel": parallel}))


def _attempt(
    case: VariantCase, number: int, planning: PlanningContext, ledger: MemoryLedger
) -> ServedVariant:
    return VariantPlanner(case, ledger, planning.nodes_of(case.spec.name, number)).groups(number)


def _expected(case: VariantCase, groups: Sequence[GroupPlan]) -> int:
    """Groups for whose number they were sized; 0 without any."""
    return case.groups(groups[0].choice.candidate.shape.ranks) if groups else 0


def _take_back(case: VariantCase, groups: Sequence[GroupPlan], ledger: MemoryLedger) -> None:
    for group in groups:
        ledger.take_back(case.spec.name, *nodes_and_bytes_of(group))


def _goes_on(planned: Sequence[GroupPlan], running: Sequence[GroupPlan]) -> bool:
    """True if a running group would serve as planned, whatever its image: that is resolved later."""
    there = [_without_image(group.choice.candidate) for group in running]
    return any(_without_image(group.choice.candidate) in there for group in planned)


def _without_image(candidate: Candidate) -> Candidate:
    return candidate.model_copy(update=dict.fromkeys(_FOLLOWS))


def _is_apart(groups: Sequence[GroupPlan]) -> bool:
    """True if no node has two of the groups."""
    nodes = [node for group in groups for node in group.choice.candidate.shape.nodes]
    return len(nodes) == len(set(nodes))


def _with_shortage(groups: Sequence[GroupPlan], case: VariantCase) -> list[GroupPlan]:
    """The groups with a note if all of them together hold fewer requests than the deployment sets."""
    requests, each = case.variant.concurrency or 0, case.each or 0
    together = each * len(groups)
    if not each or together >= requests:
        return list(groups)
    note = (
        f"{together} of {requests} requests run at once, the others wait at the gateway: what runs was sized for {each}"
        " each, and is not started again; `sparkfleet apply --retry` sizes it again"
    )
    return [noted(group, note) for group in groups]
