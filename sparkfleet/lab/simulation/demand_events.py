"""Events of deployments on demand, drawn from a seed: requests, edits, failed starts, drains, and processes that end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.lab.simulation.application import Outcome
from sparkfleet.lab.simulation.clients import DEMANDED, SimulatedClients
from sparkfleet.lab.simulation.world import UserAction, World


class DemandEvents:
    """Lets clients send requests, and disturbs what serves them, until it is ended.

    Args:
        world: with clients.
    """

    def __init__(self, world: World, clients: SimulatedClients) -> None:
        self._world = world
        self._clients = clients
        self._chance = world.demand_chance
        self._disturbs = False

    def begin(self, every_s: float) -> None:
        """Applies the deployments, and lets something happen every so many seconds on average."""
        self._clients.active = self._disturbs = True
        for name in DEMANDED:
            self._world.time.after(2.0, partial(self._world.people.append, ("apply", name)))
        self._next(every_s)

    def calm(self) -> None:
        """Only requests from now on."""
        self._disturbs = False
        self._world.processes.dies_in_swap = None

    def end(self) -> None:
        """No further requests."""
        self._clients.active = self._disturbs = False

    def _next(self, every_s: float) -> None:
        def happen() -> None:
            if not self._clients.active:
                return
            names = DEMANDS if self._disturbs else REQUESTS
            name = self._chance.choice(sorted(names))
            self._world.record(name)
            names[name](self)
            self._next(every_s)

        self._world.time.after(self._chance.expovariate(1.0 / every_s), happen)

    def _user(self, action: UserAction) -> None:
        self._world.people.append((action, self._chance.choice(DEMANDED)))

    def _delete(self, name: str) -> None:
        """Somebody deletes one of them, and applies it again later."""
        self._world.people.append(("remove", name))
        self._world.time.after(
            self._chance.uniform(0, 600), lambda: self._world.people.append(("apply", name))
        )

    def _while_one_waits(self, act: Callable[[str], object]) -> None:
        """Sends requests for a deployment, and does something to it soon after that: it waits for its memory, or starts."""
        name = self._chance.choice(DEMANDED)
        self._clients.burst(name)
        self._world.time.after(self._chance.uniform(0.5, 60), lambda: act(name))

    def _drain_loaded(self) -> None:
        """A node with the engine of one of them is drained, for a while."""
        engines = self._world.fleet.engines
        nodes = sorted({node for key in engines if key[0] in DEMANDED for node in engines[key].nodes})
        if nodes:
            node = self._chance.choice(nodes)
            self._world.people.append(("drain", node))
            back_s = self._chance.choice((30.0, 600.0, 3000.0))
            self._world.time.after(back_s, lambda: self._world.people.append(("undrain", node)))

    def _kill_in_swap(self) -> None:
        call = self._chance.choice(("retire", "deploy"))
        self._world.processes.dies_in_swap = call, self._chance.choice((1, 2))

    def _bad_rung(self) -> None:
        key = (self._chance.choice(DEMANDED), self._chance.randrange(2))
        diagnosis = Diagnosis(cause=self._chance.choice(list(Cause)), summary="it does not start")
        takes = self._chance.uniform(2, 100)
        self._world.bad[key] = lambda launch: Outcome(takes, diagnosis)
        self._world.time.after(self._chance.uniform(60, 1200), lambda: self._world.bad.pop(key, None))


REQUESTS: dict[str, Callable[[DemandEvents], None]] = {
    "requests at once": lambda events: events._clients.burst(),
    "request of a client that leaves": lambda events: events._clients.impatient(),
    "requests one after another": lambda events: events._clients.converse(),
    "requests for two models in turns": lambda events: events._clients.alternate(),
}
"""Requests, by the words that a run prints."""

DEMANDS: dict[str, Callable[[DemandEvents], None]] = {
    **REQUESTS,
    "gateway replaced": lambda events: events._clients.replace_gateway(),
    "one on demand is edited": lambda events: events._user("edit"),
    "one on demand gets an edit that does not start": lambda events: events._user("break"),
    "one on demand is applied again": lambda events: events._user("again"),
    "one on demand is deleted": lambda events: events._delete(events._chance.choice(DEMANDED)),
    "one on demand does not start": DemandEvents._bad_rung,
    "one that waits is edited": lambda events: events._while_one_waits(
        lambda name: events._world.people.append(("edit", name))
    ),
    "one that waits is deleted": lambda events: events._while_one_waits(events._delete),
    "gateway dies while one waits": lambda events: events._while_one_waits(
        lambda name: events._clients.replace_gateway(dies=True)
    ),
    "node of one on demand is drained": DemandEvents._drain_loaded,
    "controller dies in a swap": DemandEvents._kill_in_swap,
}
"""Everything that happens to deployments on demand."""
