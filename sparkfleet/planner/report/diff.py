"""Difference between a plan and the desired state. Pure."""

from __future__ import annotations

from typing import Literal

from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.values import Value

Verb = Literal["start", "change", "keep"]


FOLLOWS = ("memory_fraction",)
"""Fields that follow from a prediction: a better prediction alone is no reason to restart a model."""


class Change(Value):
    """One line of a diff: what happens to a deployment, and which fields make it so."""

    verb: Verb
    name: str
    fields: tuple[str, ...] = ()
    """`field: before → after`, for `change`."""


def compare(
    spec: Deployment, plan: DeploymentPlan, before: tuple[Deployment, DeploymentPlan] | None
) -> Change:
    """Effect of applying (`spec`, `plan`) if `before` is the desired state.

    Predictions and reasons may differ without a change: only what is launched counts.
    """
    if before is None:
        return Change(verb="start", name=spec.name)
    old_spec, old_plan = before
    asked = _differences("", old_spec.model_dump(), spec.model_dump())
    launched = _differences("plan.", _launched(old_plan), _launched(plan), () if asked else FOLLOWS)
    fields = (*asked, *launched)
    return Change(verb="change" if fields else "keep", name=spec.name, fields=fields)


def same_launch(one: DeploymentPlan, other: DeploymentPlan) -> bool:
    """True if two plans start the same groups."""
    return _launched(one) == _launched(other)


def _launched(plan: DeploymentPlan) -> dict[str, object]:
    """Launch fields by name: those of the first group, and of others only if they differ."""
    chosen = [group.choice.candidate.model_dump() for group in plan.groups]
    first = chosen[0] if chosen else {}
    launched: dict[str, object] = {"groups": len(chosen), **first}
    for number, other in enumerate(chosen[1:], start=2):
        launched |= {f"group {number} {name}": value for name, value in other.items() if value != first[name]}
    return launched


def _differences(
    prefix: str, old: dict[str, object], new: dict[str, object], apart: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Fields that differ, in words; `apart` from those of these names, of whichever group."""
    return tuple(
        f"{prefix}{name}: {_shown(name, old.get(name))} → {_shown(name, new.get(name))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and name.rpartition(" ")[2] not in apart
    )


def _shown(name: str, value: object) -> str:
    """Values of environment variables may be secrets: only their names are shown."""
    if name == "variants" and isinstance(value, tuple):
        return str(tuple({**one, "env": tuple(one["env"] or ())} for one in value))
    if name.rpartition(" ")[2] == "env":
        items = value if isinstance(value, dict | tuple) else ()
        names = [item[0] if isinstance(item, tuple) else item for item in items]
        return f"({', '.join(map(str, names))})"
    return "–" if value in (None, (), []) else str(value)
