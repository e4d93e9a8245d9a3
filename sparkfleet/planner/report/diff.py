"""Difference between a plan and the desired state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from sparkfleet.planner.report.carry_over import RunningGroup, carried_over, shared_port
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value

DiffVerb = Literal["start", "change", "keep"]
Handover = Literal["beside", "in turn", "first"]
"""Order in which old groups end and new ones start: the old ones serve until all new ones do; they end one after the other,
and the others serve meanwhile; all of them end first."""


class Change(Value):
    """One line of a diff: the effect on a deployment, and which fields cause it."""

    verb: DiffVerb
    name: str
    fields: tuple[str, ...] = ()
    """`field: before → after`, for `change`."""
    keeps: tuple[str, ...] = ()
    """Groups that go on."""
    starts: int = 0
    """Engines that start."""
    ends: tuple[str, ...] = ()
    """Groups that end."""
    silent: tuple[str, ...] = ()
    """Those of `ends` that do not answer now, and serve nothing."""
    handover: Handover | None = None
    """Order of `ends` and `starts`, by the memory that is free now; None if that is not known."""
    port: int | None = None
    """A declared port on which one that starts and one that ends listen on the same node: the old one ends before."""
    expected_s: float | None = None
    """Seconds that the last start of the same took; None if there was none."""
    on_demand: bool = False
    """True if it is on demand: a request starts it."""
    unloaded: bool = False
    """True if it is on demand and does not run now: its groups are known, and neither start nor end."""
    same_model: tuple[str, ...] = ()
    """Other deployments of the same model that go on: a file whose `name` was changed starts a second one."""


def compare(
    spec: Deployment,
    plan: DeploymentPlan,
    before: tuple[Deployment, DeploymentPlan] | None,
    running: Sequence[RunningGroup] | None = None,
    replaced: Collection[str] = (),
) -> Change:
    """Effect of applying (`spec`, `plan`) if `before` is the desired state.

    Predictions and reasons may differ without a change: only what is launched counts.

    Args:
        spec: the deployment.
        plan: its plan.
        before: the desired state; None if there is none of that name.
        running: its groups that run; left out: every group of `before`, at the first rung.
        replaced: names of those that end without this, because `before` has others in their place.
    """
    if before is None:
        return Change(verb="start", name=spec.name, starts=len(plan.groups), on_demand=spec.on_demand)
    old_spec, old_plan = before
    there = planned_groups(old_plan) if running is None else running
    found = carried_over(plan, there)
    ends = tuple(one.name for one in found.ended(there))
    asked_to_end = set(ends) - set(replaced)
    starting = [
        group.choice.candidate for group, kept in zip(plan.groups, found.kept, strict=True) if kept is None
    ]
    starts = len(starting)
    # The same engines are no change, unless they are those of a generation before one that did not start.
    is_another = starts or asked_to_end or {one.name for one in there} <= set(replaced)
    asked = changed_fields(old_spec, old_plan, spec, found.plan if is_another else old_plan)
    asked = asked or _places_gained(old_plan, plan)
    verb: DiffVerb = (
        "start" if starts and not there else "change" if asked or starts or asked_to_end else "keep"
    )
    ends = () if verb == "keep" else ends
    return Change(
        verb=verb,
        name=spec.name,
        fields=asked,
        keeps=tuple(one.name for one in there if one.name not in ends),
        starts=starts,
        ends=ends,
        port=shared_port(starting, [one.candidate for one in found.ended(there)]),
        on_demand=spec.on_demand,
    )


def changed_fields(
    old_spec: Deployment, old_plan: DeploymentPlan, spec: Deployment, plan: DeploymentPlan
) -> tuple[str, ...]:
    """`field: before → after` for each field of a deployment, and of what its plan launches.

    A change of a plan that repeats its deployment's is left out: a long command filled the screen twice.
    """
    asked = _differences("", old_spec.model_dump(), spec.model_dump())
    launched = _launch_differences(_launched(old_plan), _launched(plan))
    return (*asked, *(one for one in launched if one.removeprefix("plan.") not in asked))


def _places_gained(old: DeploymentPlan, new: DeploymentPlan) -> tuple[str, ...]:
    """Nodes that a group would now do without if they were lost, with the nodes on which it goes on.

    A plan of an earlier release has none; and another node may have come since. One that is no longer there, or elsewhere,
    is no change: that follows the memory which is free now.
    """
    found: dict[str, str] = {}
    for before, after in zip(old.groups, new.groups, strict=False):
        for node in after.choice.candidate.shape.nodes:
            rung = after.without(node)
            if rung is not None and before.without(node) is None:
                found[node] = "+".join(rung.candidate.shape.nodes)
    return tuple(f"plan.without {node}: – → {nodes}" for node, nodes in found.items())


def planned_groups(plan: DeploymentPlan) -> tuple[RunningGroup, ...]:
    """The groups of a plan as if all of them ran at the first rung."""
    return tuple(RunningGroup(member=(1, at), plan=group) for at, group in enumerate(plan.groups))


def _launched(plan: DeploymentPlan) -> list[dict[str, object]]:
    """Launch fields by name, of each group."""
    return [group.choice.candidate.model_dump() for group in plan.groups]


def _launch_differences(old: list[dict[str, object]], new: list[dict[str, object]]) -> tuple[str, ...]:
    """Changes of the launches: of the first group, and of another one if its change is not the first one's.

    A group that comes or goes has the fields in which it differs from the first one.
    """
    first = _differences("plan.", old[0] if old else {}, new[0] if new else {})
    found = [*first, *_differences("plan.", {"groups": len(old)}, {"groups": len(new)})]
    for at in range(1, max(len(old), len(new))):
        prefix = f"plan.group {at + 1} "
        if at < len(old) and at < len(new):
            changes = _differences("plan.", old[at], new[at])
            found += [prefix + one.removeprefix("plan.") for one in changes if one not in first]
        else:
            found += _differences(prefix, _apart(old, at), _apart(new, at))
    return tuple(sorted(found))


def _apart(groups: list[dict[str, object]], at: int) -> dict[str, object]:
    """Fields in which a group differs from the first one; {} if there is no such group."""
    return {k: v for k, v in groups[at].items() if v != groups[0][k]} if at < len(groups) else {}


def _differences(prefix: str, old: dict[str, object], new: dict[str, object]) -> tuple[str, ...]:
    """Fields that differ, in words."""
    return tuple(
        f"{prefix}{name}: {_change(name, old.get(name), new.get(name))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    )


def _change(name: str, before: object, after: object) -> str:
    """`before → after`; of variables with the same names those that have another value, which is not shown."""
    if name == "env" and isinstance(before, dict | tuple) and isinstance(after, dict | tuple):
        old, new = dict(before), dict(after)
        if old.keys() == new.keys():
            return f"another value of {', '.join(key for key in sorted(old) if old[key] != new[key])}"
    return f"{_shown(name, before)} → {_shown(name, after)}"


def _shown(name: str, value: object) -> str:
    """A value as its file would have it. Those of environment variables may be secrets: only their names are shown."""
    if name == "variants" and isinstance(value, tuple):
        return _words(tuple({**one, "env": tuple(one["env"] or ())} for one in value))
    if name.rpartition(" ")[2] == "env":
        items = value if isinstance(value, dict | tuple) else ()
        names = [item[0] if isinstance(item, tuple) else item for item in items]
        return _words(tuple(names))
    return _words(value)


def _words(value: object) -> str:
    """A value without Python's signs: lists with commas, mappings as `key value`, what is not given as a dash."""
    if isinstance(value, dict):
        given = {key: one for key, one in value.items() if one not in (None, (), {}, "")}
        return ", ".join(f"{key} {_words(one)}" for key, one in given.items()) or "–"
    if isinstance(value, list | tuple):
        return " ".join(map(_words, value)) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else str(value)
