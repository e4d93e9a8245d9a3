"""Users of a simulated fleet: they apply, change and delete deployments, and drain nodes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.newer_generations import OvertakenError
from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause, ControlError
from sparkfleet.lab.simulation.application import Outcome
from sparkfleet.lab.simulation.clients import DEMANDED
from sparkfleet.lab.simulation.fleet import SYSTEM
from sparkfleet.lab.simulation.plans import demanded_plan, edited, random_plan, with_other_engines
from sparkfleet.lab.simulation.world import UserAction, World
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.units import GIB

MOVES = 0.7
"""Share of the deployments of a drained node that the command moves before something ends it."""

BROKEN_BY = (Cause.FLAG, Cause.UNKNOWN, Cause.TRANSIENT, Cause.MEMORY)
"""Causes for which groups of a broken edit do not start."""


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
            self._world.has_acted = True
            if what == "race":
                await self.race(name)
            elif what == "remove":
                await self.remove(name)
            elif what == "drain":
                await self.drain(name)
            elif what == "undrain":
                await self.undrain(name)
            else:
                await self.apply(name, what)

    async def act_in_a_call(self) -> None:
        """Carries out what they want to do with deployments while the controller waits for a call of its own.

        Nodes are drained between two rounds only: what was started on them is checked by round.
        """
        world = self._world
        drains = [one for one in world.people if one[0] in ("drain", "undrain")]
        world.people = [one for one in world.people if one not in drains]
        await self.act()
        world.people = drains

    async def race(self, name: str) -> None:
        """Two users apply plans that they made from the same generation, at the same moment: one of them is refused."""
        world = self._world
        if world.controller is None:
            return
        world.place.keep_older()
        there = world.store.deployments.desired().get(name)
        base = there.generation if there else 0
        outcomes = await asyncio.gather(*(self._put_on(name, base) for _ in range(2)))
        changed = [one for one in outcomes if one is not None]
        if len(changed) > 1:
            world.report.violations.append(
                f"{world.time.seconds:.1f} s: two plans from generation {base} of {name} were applied"
            )
        world.changed_at = world.time.seconds

    async def _put_on(self, name: str, base: int) -> Desired | None:
        """Applies a new plan that was made from a generation; None if it was refused or changed nothing."""
        world = self._world
        assert world.controller is not None
        names = [one for one in world.names if one not in world.drained()]
        spec, plan = random_plan(name, names, world.race_chance, world.share_gib, world.fleet.small)
        with contextlib.suppress(OvertakenError, sqlite3.Error):
            desired, changed = await world.controller.commands.put(spec, plan, "somebody", base=base)
            self.confirmed[name] = desired
            world.note(f"{name} applied from {base}: generation {desired.generation}, {desired.groups}")
            return desired if changed else None
        return None

    async def apply(self, name: str, what: UserAction = "apply") -> None:
        """Applies a deployment for a user: a new one, an unchanged one ("again"), a changed one ("edit"), or one whose
        groups do not start ("break")."""
        if self._world.controller is None:
            return
        self._world.place.keep_older()
        there = self._world.store.deployments.desired().get(name)
        drained = self._world.drained()
        chance = self._world.demand_chance if name in DEMANDED else self._world.chance
        spec, plan = self._planned(name, [one for one in self._world.names if one not in drained])
        if there is not None and what == "again":
            spec, plan = there.spec, there.plan
        if there is not None and what == "edit":
            spec, plan = edited(there, self._world.store.deployments.history(name), (spec, plan), chance)
        if what == "break":
            plan = with_other_engines(plan, chance.randrange(513, 4096))
        with contextlib.suppress(sqlite3.Error):
            desired, changed = await self._world.controller.commands.put(
                spec, plan, "somebody", retry=what == "again"
            )
            self.confirmed[name] = desired
            if what == "break" and changed:
                diagnosis = Diagnosis(cause=chance.choice(BROKEN_BY), summary="its edit is broken")
                self._world.broken[name, desired.generation] = Outcome(chance.uniform(2, 100), diagnosis)
            self._world.note(
                f"{name} {what}: generation {desired.generation}, changed: {changed}, {desired.groups}"
            )
        self._world.changed_at = self._world.time.seconds

    def _planned(self, name: str, nodes: list[str]) -> tuple[Deployment, DeploymentPlan]:
        world = self._world
        if name not in DEMANDED:
            return random_plan(name, nodes, world.chance, world.share_gib, world.fleet.small)
        left = {node: (world.fleet.nodes[node].memory - SYSTEM) // GIB for node in nodes}
        for one in world.store.deployments.desired().values():
            for group in () if one.spec.on_demand else one.plan.groups:
                for node in left.keys() & set(group.choice.candidate.shape.nodes):
                    left[node] -= int(group.choice.prediction.memory_bytes_per_rank.high / GIB) + 1
        return demanded_plan(name, left, world.demand_chance)

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
