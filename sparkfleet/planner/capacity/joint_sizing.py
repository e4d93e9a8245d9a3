"""Reduces sizes that deployments leave open, so that more deployments of one call fit. Pure.

Each level halves the open sizes: requests at once down to one, then the context down to the least. The mildest level that
serves as many deployments as the strictest is used, and only for those that share a node. Pinned sizes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache

from sparkfleet.planner.capacity.headroom import bisect
from sparkfleet.planner.capacity.proposal import Sizes
from sparkfleet.planner.capacity.sizing import LEAST_CONTEXT
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan, Plan, Rung

Pack = Callable[[Mapping[str, Sizes]], Plan]
"""Packs the same deployments in the same order, with at most so much for those that are named."""


def with_room(plan: Plan, pack: Pack) -> Plan:
    """The plan with open sizes lowered so that more is served; unchanged if that does not help.

    It packs once if it does not help, and about five times if it does.
    """
    placed = {one.name: sizes for one in plan.deployments if (sizes := _sizes(one)) is not None}
    strictest = max((_halvings(sizes) for sizes in placed.values()), default=0)

    @cache
    def at(level: int) -> Plan:
        return pack({name: _halved(sizes, level) for name, sizes in placed.items()})

    if not strictest or len(at(strictest).refused) >= len(plan.refused):
        return plan
    # The more is left, the less is lowered: stricter levels serve as many.
    level = strictest - bisect(
        lambda spared: len(at(strictest - spared).refused) <= len(at(strictest).refused), 0, strictest - 1
    )
    found = at(level)
    more = {one.name for one in found.deployments} - {one.name for one in plan.deployments}
    needed = {name for name in placed if _beside(found, name, more)}
    fewer = pack({name: _halved(placed[name], level) for name in sorted(needed)})
    return _with_notes(fewer if len(fewer.refused) <= len(found.refused) else found, placed, more)


def _sizes(plan: DeploymentPlan) -> Sizes | None:
    """The largest sizes of a deployment's groups; None if an engine of its own has them."""
    own = [group.choice.candidate for group in plan.groups if group.choice.candidate.engine != "custom"]
    if not own:
        return None
    return Sizes(max(one.context for one in own), max(one.concurrency for one in own))


def _halvings(sizes: Sizes) -> int:
    """Number of levels after which nothing is left to halve."""
    return sizes.concurrency.bit_length() - 1 + max(0, (sizes.context // LEAST_CONTEXT).bit_length() - 1)


def _halved(sizes: Sizes, level: int) -> Sizes:
    requests = min(level, sizes.concurrency.bit_length() - 1)
    shorter = sizes.context >> (level - requests)
    return Sizes(max(shorter, min(LEAST_CONTEXT, sizes.context)), max(1, sizes.concurrency >> requests))


def _nodes(groups: Collection[GroupPlan]) -> set[str]:
    return {node for group in groups for node in group.choice.candidate.shape.nodes}


def _beside(plan: Plan, name: str, others: Collection[str]) -> list[str]:
    """Deployments of `others` that share a node with one."""
    one = plan.of(name)
    own = _nodes(one.groups) if one else set()
    return [other.name for other in plan.deployments if other.name in others and own & _nodes(other.groups)]


def _with_notes(plan: Plan, before: Mapping[str, Sizes], more: Collection[str]) -> Plan:
    """The plan with a note on every reduced rung: the deployments that it made room for."""
    deployments = []
    for one in plan.deployments:
        beside = _beside(plan, one.name, more)
        words = f"so that {_and(beside or sorted(more))} fit{'s' if len(beside or more) == 1 else ''}"
        words += " beside it" if beside else ""
        sizes = before.get(one.name)
        groups = (
            one.groups
            if sizes is None
            else tuple(_group_with_notes(group, sizes, words) for group in one.groups)
        )
        deployments.append(one.model_copy(update={"groups": groups}))
    return plan.model_copy(update={"deployments": tuple(deployments)})


def _group_with_notes(group: GroupPlan, before: Sizes, words: str) -> GroupPlan:
    return group.model_copy(
        update={"ladder": tuple(_rung_with_notes(rung, before, words) for rung in group.ladder)}
    )


def _rung_with_notes(rung: Rung, before: Sizes, words: str) -> Rung:
    has = rung.candidate
    sizes = (("context", has.context, before.context), ("concurrency", has.concurrency, before.concurrency))
    less = [f"{name} {now} instead of {then}" for name, now, then in sizes if now < then]
    if not less or has.engine == "custom":
        return rung
    return rung.model_copy(update={"notes": (*rung.notes, f"{', '.join(less)} {words}")})


def _and(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
