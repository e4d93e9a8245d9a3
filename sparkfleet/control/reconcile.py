"""What to do next, from what is wanted and what runs. Pure.

The rules, in the order in which they are applied to each deployment:

1. Nobody wants it: retire its applications.
2. The wanted generation has no application: deploy it; beside the old one where memory allows, after it otherwise.
3. The wanted generation serves: retire the older ones.
4. The wanted generation failed: leave the older one serving.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from sparkfleet.control.status import App
from sparkfleet.values import Value


class Action(Value):
    """One thing to do to one application, and why."""

    verb: Literal["deploy", "retire"]
    deployment: str
    generation: int
    reason: str


def decide(wanted: Mapping[str, int], apps: Collection[App], room: Mapping[str, bool]) -> tuple[Action, ...]:
    """The actions that bring `apps` nearer to `wanted` (name to generation).

    `room` says for each name whether its wanted generation fits into memory beside what runs now.
    """
    unwanted = [
        _retire(app, "no longer wanted")
        for app in apps
        if app.deployment not in wanted and app.status != "retiring"
    ]
    changes = [
        action
        for name, generation in wanted.items()
        for action in _one(name, generation, [a for a in apps if a.deployment == name], room.get(name, True))
    ]
    return (*unwanted, *changes)


def _one(name: str, generation: int, apps: list[App], room: bool) -> list[Action]:
    current = next((app for app in apps if app.generation == generation), None)
    older = [app for app in apps if app.generation != generation]
    live = [app for app in older if app.status != "retiring"]
    if current is not None:
        reason = f"replaced by generation {generation}"
        return [_retire(app, reason) for app in live] if current.status == "running" else []
    deploy = Action(verb="deploy", deployment=name, generation=generation, reason="wanted and not there")
    if not older:
        return [deploy]
    if room:
        return [deploy.model_copy(update={"reason": "the old one serves until this one is ready"})]
    # Too little memory for both: stop first. `deploy` follows once the old one is gone.
    return [_retire(app, f"no memory for it and generation {generation} at once") for app in live]


def _retire(app: App, reason: str) -> Action:
    return Action(verb="retire", deployment=app.deployment, generation=app.generation, reason=reason)
