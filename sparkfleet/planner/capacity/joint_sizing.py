"""Reduces sizes that deployments leave open, so that more deployments of one call fit, or share a node evenly. Pure.

Each level halves the open sizes: requests at once down to one, then the context down to the least. The mildest level that
serves as many deployments as the strictest is used, and only for those that share a node. Pinned sizes are kept.

Deployments are placed one after the other, so the first has all that it would have alone, and the last what is left. If that
is less than it would have alone, those beside it are lowered until the one that lost most has lost as little as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from math import ceil, log2

from sparkfleet.planner.capacity.headroom import bisect
from sparkfleet.planner.capacity.proposal import DEFAULT_CONCURRENCY, DEFAULT_CONTEXT, Sizes
from sparkfleet.planner.capacity.sizing import LEAST_CONTEXT
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan, Plan, Rung

SizesOf = Mapping[str, Sizes]
"""Sizes by the names of deployments."""
Pack = Callable[[SizesOf], Plan]
"""Packs the same deployments in the same order, with at most so much for those that are named."""


def with_room(plan: Plan, pack: Pack) -> Plan:
    """The plan with open sizes lowered so that more is served; unchanged if that does not help.

    It packs once if it does not help, and about five times if it does.
    """
    placed = {one.name: sizes for one in plan.deployments if (sizes := sizes_of(one)) is not None}
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


def with_even_sizes(plan: Plan, pack: Pack, alone: Callable[[str], Sizes | None], floors: SizesOf) -> Plan:
    """The plan with open sizes of deployments that share a node lowered for the one beside them that lost most.

    What that one still lacks is a note, with the deployments that would have to be lowered. Unchanged if nothing was lost.

    Args:
        plan: that serves every deployment.
        pack: packs them again.
        alone: the sizes that a deployment would have without the others.
        floors: sizes below which a deployment is not lowered: those of engines that run, which would be started again.
    """
    placed = {one.name: sizes for one in plan.deployments if (sizes := sizes_of(one)) is not None}
    crowded = {name for name in placed if _beside(plan, name, set(placed) - {name})}
    if not any(_is_less_than_usual(placed[name]) for name in crowded):
        return plan
    most = {name: alone(name) or placed[name] for name in sorted(crowded)}
    lost = _losses(plan, most)
    worst = max(lost, key=lambda name: lost[name])
    givers = _beside(plan, worst, [name for name in most if lost[name] < lost[worst]])
    if not lost[worst] or not givers:
        return plan
    places = {name: _nodes_of(plan, name) for name in most}
    best, least = plan, (lost[worst], sum(lost.values()))
    for level in range(1, lost[worst]):
        found = pack({name: _no_less(_halved(placed[name], level), floors.get(name)) for name in givers})
        losses = _losses(found, most)
        is_better = (max(losses.values()), sum(losses.values())) < least
        if is_better and not found.refused and places == {name: _nodes_of(found, name) for name in most}:
            best, least = found, (max(losses.values()), sum(losses.values()))
    return _with_shared_notes(best, placed, most[worst], worst, givers)


def _is_less_than_usual(sizes: Sizes) -> bool:
    return sizes.context < DEFAULT_CONTEXT or sizes.concurrency < DEFAULT_CONCURRENCY["interactive"]


def _losses(plan: Plan, most: SizesOf) -> dict[str, int]:
    """Halvings from the sizes that each deployment would have alone to those that it has, rounded up."""
    found = {one.name: sizes_of(one) for one in plan.deployments}
    return {name: _halvings_between(full, found.get(name) or full) for name, full in most.items()}


def _halvings_between(full: Sizes, has: Sizes) -> int:
    shares = (full.context / has.context, full.concurrency / has.concurrency)
    return sum(max(0, ceil(log2(share))) for share in shares)


def _no_less(sizes: Sizes, floor: Sizes | None) -> Sizes:
    if floor is None:
        return sizes
    return Sizes(max(sizes.context, floor.context), max(sizes.concurrency, floor.concurrency))


def _nodes_of(plan: Plan, name: str) -> list[tuple[str, ...]]:
    one = plan.of(name)
    return [group.choice.candidate.shape.nodes for group in one.groups] if one else []


def _with_shared_notes(
    plan: Plan, before: SizesOf, alone: Sizes, worst: str, givers: Collection[str]
) -> Plan:
    """The plan with a note on every reduced rung: the deployment that has more by it, and how much it had; and on that one,
    if it has less than alone: what has to be lowered for more."""
    now = {one.name: sizes for one in plan.deployments if (sizes := sizes_of(one)) is not None}
    has, had = now[worst], before[worst]
    words = f"so that {worst} has {has.context} × {has.concurrency} beside it instead of {had.context} × {had.concurrency}"
    noted = {
        one.name: tuple(_group_with_notes(group, before[one.name], words) for group in one.groups)
        for one in plan.deployments
        if one.name in before and one.name != worst
    }
    if has != alone:
        beside = _and([f"{name} ({now[name].context} × {now[name].concurrency})" for name in givers])
        less = f"alone it would have {alone.context} × {alone.concurrency}: a lower `concurrency` or `context` of {beside}"
        noted[worst] = tuple(
            group.model_copy(
                update={"ladder": tuple(_with_note(rung, f"{less} leaves it more") for rung in group.ladder)}
            )
            for one in plan.deployments
            if one.name == worst
            for group in one.groups
        )
    deployments = tuple(
        one.model_copy(update={"groups": noted.get(one.name, one.groups)}) for one in plan.deployments
    )
    return plan.model_copy(update={"deployments": deployments})


def _with_note(rung: Rung, note: str) -> Rung:
    return rung.model_copy(update={"notes": (*rung.notes, note)})


def sizes_of(plan: DeploymentPlan) -> Sizes | None:
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
    return _with_note(rung, f"{', '.join(less)} {words}")


def _and(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
