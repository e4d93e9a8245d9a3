"""What to do next, from what is wanted and what runs. Pure.

The rules, in the order in which they are applied to each deployment:

1. Nobody wants it: retire its applications.
2. A group of the wanted generation has no application: deploy it; beside the old ones where memory allows, after them
   otherwise.
3. Every group of the wanted generation serves: retire the older ones.
4. The wanted generation failed: leave the older one serving.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from sparkfleet.control.status import App
from sparkfleet.values import Value


class Wanted(Value):
    """The generation of a deployment that should run, and of how many groups it is."""

    generation: int
    groups: int = 1
    given_up: bool = False
    """Whether one of its groups is not started any more."""


class Action(Value):
    """One thing to do to one application, and why."""

    verb: Literal["deploy", "retire"]
    deployment: str
    generation: int
    replica: int
    reason: str


def decide(
    wanted: Mapping[str, Wanted], apps: Collection[App], room: Mapping[str, bool | None]
) -> tuple[Action, ...]:
    """The actions that bring `apps` nearer to `wanted`, by name.

    `room` says for each name whether its wanted generation fits into memory beside what runs now; None: not known yet.
    """
    unwanted = [
        _retire(app, "no longer wanted")
        for app in apps
        if app.deployment not in wanted and app.status != "retiring"
    ]
    changes = [
        action
        for name, what in wanted.items()
        for action in _one(name, what, [a for a in apps if a.deployment == name], room.get(name, True))
    ]
    return (*unwanted, *changes)


def _one(name: str, wanted: Wanted, apps: list[App], room: bool | None) -> list[Action]:
    current = {app.replica: app for app in apps if app.generation == wanted.generation}
    older = [app for app in apps if app.generation != wanted.generation]
    live = [app for app in older if app.status != "retiring"]
    serves = any(app.status == "running" for app in live)
    missing = [replica for replica in range(wanted.groups) if replica not in current]
    if not missing:
        reason = f"replaced by generation {wanted.generation}"
        serving = all(app.status == "running" for app in current.values())
        return [_retire(app, reason) for app in live] if serving else []
    if older and not current and (wanted.given_up or room is None):
        return []  # nothing is stopped for what is not started, or where nobody knows if that is needed
    if older and not current and not room:
        # Too little memory for both: stop first. `deploy` follows once the old ones are gone.
        reason = f"no memory for it and generation {wanted.generation} at once"
        if not serves:
            reason = f"it serves nobody, and generation {wanted.generation} takes its place"
        return [_retire(app, reason) for app in live]
    reason = "the old one serves until this one is ready" if serves else "wanted and not there"
    return [
        Action(verb="deploy", deployment=name, generation=wanted.generation, replica=replica, reason=reason)
        for replica in missing
    ]


def _retire(app: App, reason: str) -> Action:
    return Action(
        verb="retire",
        deployment=app.deployment,
        generation=app.generation,
        replica=app.replica,
        reason=reason,
    )
