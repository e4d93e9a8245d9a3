"""Users of a simulated fleet: they apply, change and delete deployments, and drain nodes."""

from __future__ import annotations

import contextlib
import sqlite3

from sparkfleet.controlplane.desired import Desired
from sparkfleet.errors import ControlError
from sparkfleet.lab.simulation.plans import edited, random_plan
from sparkfleet.lab.simulation.world import UserAction, World

MOVES = 0.7
"""Share of the deployments of a drained node that the command moves before something ends it."""


class Users:
    """Everybody who gives the controller commands.

    Args:
        world: their fleet, with the commands to come.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.confirmed: dict[str, Desired] = {}
        """Each deployment as the controller confirmed it last; none of those that it confirmed to be deleted."""

    async def act(self) -> None:
        """Carries out what they want to do now."""
        while self._world.people:
            what, name = self._world.people.pop(0)
            if what == "remove":
                await self.remove(name)
            elif what == "drain":
                await self.drain(name)
            elif what == "undrain":
                await self.undrain(name)
            else:
                await self.apply(name, what)

    async def apply(self, name: str, what: UserAction = "apply") -> None:
        """Applies a deployment for a user: a new one, an unchanged one ("again"), or a changed one ("edit")."""
        if self._world.controller is None:
            return
        self._world.place.keep_older()
        there = self._world.store.deployments.desired().get(name)
        drained = self._world.drained()
        spec, plan = random_plan(
            name, [one for one in self._world.names if one not in drained], self._world.chance
        )
        if there is not None and what == "again":
            spec, plan = there.spec, there.plan
        if there is not None and what == "edit":
            spec, plan = edited(
                there, self._world.store.deployments.history(name), (spec, plan), self._world.chance
            )
        with contextlib.suppress(sqlite3.Error):
            desired, changed = await self._world.controller.commands.put(
                spec, plan, "somebody", retry=what == "again"
            )
            self.confirmed[name] = desired
            self._world.note(
                f"{name} {what}: generation {desired.generation}, changed: {changed}, {desired.groups}"
            )
        self._world.changed_at = self._world.time.seconds

    async def remove(self, name: str) -> None:
        """Somebody deletes a deployment."""
        if self._world.controller is not None:
            with contextlib.suppress(ControlError, sqlite3.Error):
                await self._world.controller.commands.remove(name, "somebody")
                self.confirmed.pop(name, None)
                self._world.note(f"{name} removed")

    async def drain(self, node: str) -> None:
        """Somebody drains a node; what is planned on it moves, unless the command ends before."""
        if self._world.controller is None or not set(self._world.names) - self._world.drained() - {node}:
            return
        with contextlib.suppress(sqlite3.Error):
            await self._world.controller.commands.drain(node, "somebody")
            self._world.note(f"{node} drained")
            for one in self._world.store.deployments.desired().values():
                moves = any(node in group.choice.candidate.shape.nodes for group in one.plan.groups)
                if moves and self._world.drain_chance.random() < MOVES:
                    await self.apply(one.name)
        self._world.changed_at = self._world.time.seconds

    async def undrain(self, node: str) -> None:
        """Somebody lets a drained node be used again."""
        if self._world.controller is not None:
            with contextlib.suppress(ControlError, sqlite3.Error):
                await self._world.controller.commands.undrain(node, "somebody")
                self._world.note(f"{node} undrained")
            self._world.changed_at = self._world.time.seconds
