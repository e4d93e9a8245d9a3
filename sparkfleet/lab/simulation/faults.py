"""Faults, drawn from a seed: machines, networks, disks, clocks, processes, models that do not start, and people."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.launch_plan import GroupLaunch
from sparkfleet.lab.simulation.fleet import SimulatedFleet
from sparkfleet.lab.simulation.serve import DETECT_S, HANG_S, Outcome, SimulatedServe
from sparkfleet.lab.simulation.store_place import Content, StorePlace
from sparkfleet.lab.simulation.timeline import Timeline
from sparkfleet.units import GIB

NAMES = ("a", "b")
"""Deployments of the simulated users."""


class FaultTarget(Protocol):
    """The parts of a simulation that faults reach."""

    chance: random.Random
    drain_chance: random.Random
    time: Timeline
    fleet: SimulatedFleet
    serve: SimulatedServe
    place: StorePlace
    names: tuple[str, ...]
    loses: float
    people: list[tuple[str, str]]

    def record(self, fault: str) -> None:
        """Counts a fault and logs it for a replay of the seed."""
        ...

    def set_disk_full(self, full: bool) -> None:
        """Let the controller's disk have no page more, or enough."""
        ...

    def start_controller(self) -> None:
        """Start the controller, if its node is up and there is none."""
        ...

    def end_controller(self, back_after_s: float | None) -> None:
        """End the controller's process; None: nobody starts it again."""
        ...

    def end_controller_in_round(self) -> None:
        """Let the controller's process end in the middle of its next round."""
        ...


class Faults:
    """Injects one fault after another until it is ended, then takes back what it did.

    Args:
        simulation: the fleet that suffers them.
    """

    def __init__(self, simulation: FaultTarget) -> None:
        self._of = simulation
        self._chance = simulation.chance
        self._active = False
        self._bad: dict[tuple[str, int], Callable[[GroupLaunch], Outcome]] = {}
        """By deployment and rung: the result of a start, while it is not well."""

    def begin(self, every_s: float, drain_every_s: float) -> None:
        """Inject faults at random moments, and drain nodes, that many seconds apart on average."""
        self._active = True
        self._of.time.after(1.0, lambda: self._people(NAMES[0]))
        self._next(every_s)
        if drain_every_s != float("inf"):
            self._next_drain(drain_every_s)

    def end(self) -> None:
        """No more faults; machines, network and disk are well, and every rung starts."""
        self._active = False
        self._bad.clear()
        self._of.loses = 0.0
        self._of.set_disk_full(False)
        self._of.place.put("right")
        for name, node in self._of.fleet.nodes.items():
            node.cut = node.slow_report = False
            node.hog = 0
            if not node.up:
                self._of.fleet.power_on(name)
        self._of.time.after(30.0, self._of.start_controller)

    def outcome(self, launch: GroupLaunch) -> Outcome:
        """The result of a start."""
        bad = self._bad.get((launch.deployment, launch.rung))
        if bad is not None:
            return bad(launch)
        nodes = launch.candidate.shape.nodes
        if any(self._of.fleet.free(node) < launch.needs for node in nodes):
            return Outcome(2.0, Diagnosis(cause=Cause.MEMORY, says="not enough memory is free", began=False))
        return Outcome(self._chance.uniform(20, 240))

    def _next(self, every_s: float) -> None:
        def happen() -> None:
            if not self._active:
                return
            name = self._chance.choice(sorted(FAULTS))
            self._of.record(name)
            FAULTS[name](self)
            self._next(every_s)

        self._of.time.after(self._chance.expovariate(1.0 / every_s), happen)

    # machines

    def _node(self) -> str:
        return self._chance.choice(self._of.names)

    def _reboot(self) -> None:
        self.off(self._node(), self._chance.uniform(40, 170))

    def _long_off(self) -> None:
        self.off(self._node(), self._chance.uniform(200, 3000))

    def _reboot_twice(self) -> None:
        name = self._node()
        self.off(name, 60)
        self._of.time.after(90, lambda: self.off(name, 60) if self._active else None)

    def off(self, name: str, seconds: float) -> None:
        """Switch a node off for so long; with the head goes the controller, and Ray with all applications."""
        fleet = self._of.fleet
        if not fleet.nodes[name].up:
            return
        fleet.power_off(name)
        if name == fleet.head.name:
            self._of.end_controller(None)
            self._of.serve.clear()
        self._of.serve.notice_nodes()

        def on() -> None:
            if not fleet.nodes[name].up:
                fleet.power_on(name)
            if name == fleet.head.name:
                self._of.time.after(30.0, self._of.start_controller)

        self._of.time.after(seconds, on)

    def _cut(self) -> None:
        if len(self._of.names) < 2:
            return  # the head alone: there is no network between nodes
        name = self._chance.choice(self._of.names[1:])
        node = self._of.fleet.nodes[name]
        node.cut = True
        # Ray calls a silent node gone after about a minute.
        self._of.time.after(55.0, self._of.serve.notice_nodes)

        def back() -> None:
            node.cut = False

        self._of.time.after(self._chance.choice((20.0, 100.0, 400.0, 2000.0)), back)

    def _silent_node(self) -> None:
        node = self._of.fleet.nodes[self._node()]
        node.slow_report = True

        def back() -> None:
            node.slow_report = False

        self._of.time.after(self._chance.uniform(5, 300), back)

    def _hog(self) -> None:
        node = self._of.fleet.nodes[self._node()]
        node.hog = self._chance.randrange(20, 105) * GIB

        def back() -> None:
            node.hog = 0

        self._of.time.after(self._chance.uniform(60, 1200), back)

    # engines and groups

    def _engine_dies(self) -> None:
        if self._of.fleet.engines:
            cause = self._chance.choice((None, Cause.MEMORY, Cause.TRANSIENT, Cause.UNKNOWN))
            diagnosis = Diagnosis(cause=cause, says="it died") if cause else None
            self._of.serve.lose_engine(self._chance.choice(sorted(self._of.fleet.engines)), diagnosis)

    def _engine_hangs(self) -> None:
        ready = sorted(key for key, one in self._of.fleet.engines.items() if one.ready)
        if ready:
            key = self._chance.choice(ready)
            self._of.fleet.engines[key].hurt = "hangs"
            self._of.time.after(DETECT_S, lambda: self._found(key))

    def _found(self, key: tuple[str, int, int]) -> None:
        engine = self._of.fleet.engines.get(key)
        if engine is not None and engine.hurt:
            self._of.serve.lose_engine(key, None)

    def _actor_dies(self) -> None:
        if self._of.serve.apps:
            self._of.serve.lose_actor(self._chance.choice(sorted(self._of.serve.apps)), "killed")

    def _actor_stalls(self) -> None:
        if self._of.serve.apps:
            app = self._of.serve.apps[self._chance.choice(sorted(self._of.serve.apps))]
            app.stalled = True

            def back() -> None:
                app.stalled = False

            self._of.time.after(self._chance.uniform(10, 60), back)

    def _bad_rung(self) -> None:
        cause = self._chance.choice(list(Cause))
        diagnosis = Diagnosis(cause=cause, says="it does not start")
        takes = self._chance.uniform(2, 100)
        self._spoil(lambda launch: Outcome(takes, diagnosis))

    def _rung_hangs(self) -> None:
        diagnosis = Diagnosis(cause=Cause.UNKNOWN, says="no line for 900 s")
        self._spoil(lambda launch: Outcome(HANG_S, diagnosis))

    def _rung_wedges(self) -> None:
        takes = self._chance.uniform(10, 100)
        self._spoil(lambda launch: Outcome(takes, takes_down=launch.candidate.shape.nodes[-1]))

    def _spoil(self, outcome: Callable[[GroupLaunch], Outcome]) -> None:
        key = (self._chance.choice(NAMES), self._chance.randrange(3))
        self._bad[key] = outcome

        def well() -> None:
            self._bad.pop(key, None)

        self._of.time.after(self._chance.uniform(300, 7200), well)

    # the controller, its disk, its clock, its network

    def _kill_controller(self) -> None:
        self._of.end_controller(self._chance.uniform(1, 30))

    def _kill_in_round(self) -> None:
        self._of.end_controller_in_round()

    def _disk_full(self) -> None:
        self._of.set_disk_full(True)
        self._of.time.after(self._chance.uniform(5, 400), lambda: self._of.set_disk_full(False))

    def _store_away(self) -> None:
        self._misplace("away")

    def _store_garbage(self) -> None:
        self._misplace("garbage")

    def _store_foreign(self) -> None:
        self._misplace("foreign")

    def _store_older(self) -> None:
        self._misplace("older")

    def _misplace(self, content: Content) -> None:
        """Put something in the place of the store for a while; often the controller starts while it is there."""
        if not self._of.place.put(content):
            return
        if self._chance.random() < 0.5:
            self._of.time.after(self._chance.uniform(0, 20), lambda: self._of.end_controller(1.0))
        self._of.time.after(self._chance.uniform(5, 600), lambda: self._back(content))

    def _back(self, content: Content) -> None:
        if self._of.place.content == content:
            self._of.place.put("right")

    def _clock_jumps(self) -> None:
        self._of.time.jump(self._chance.choice((-86_400.0, -30.0, 30.0, 3600.0, 86_400.0)))

    def _reports_lost(self) -> None:
        self._of.loses = self._chance.choice((0.2, 0.9))

        def back() -> None:
            self._of.loses = 0.0

        self._of.time.after(self._chance.uniform(10, 120), back)

    # people

    def _apply(self) -> None:
        self._people(self._chance.choice(NAMES))

    def _people(self, name: str) -> None:
        self._of.people.append(("apply", name))

    def _next_drain(self, every_s: float) -> None:
        """A node is drained, for a while."""
        chance = self._of.drain_chance

        def happen() -> None:
            if not self._active:
                return
            node = chance.choice(self._of.names)
            self._of.record("node drained")
            self._of.people.append(("drain", node))
            back_s = chance.choice((60.0, 1200.0, 6000.0))
            self._of.time.after(back_s, lambda: self._of.people.append(("undrain", node)))
            self._next_drain(every_s)

        self._of.time.after(chance.expovariate(1.0 / every_s), happen)

    def _apply_again(self) -> None:
        self._of.people.append(("again", self._chance.choice(NAMES)))

    def _remove(self) -> None:
        self._of.people.append(("remove", self._chance.choice(NAMES)))

    def _edit(self) -> None:
        self._of.people.append(("edit", self._chance.choice(NAMES)))

    def _two_applies(self) -> None:
        self._of.people += [("apply", self._chance.choice(NAMES)), ("apply", self._chance.choice(NAMES))]


FAULTS: dict[str, Callable[[Faults], None]] = {
    "node rebooted": Faults._reboot,
    "node off for long": Faults._long_off,
    "node rebooted twice": Faults._reboot_twice,
    "node cut off": Faults._cut,
    "node reports nothing": Faults._silent_node,
    "memory taken": Faults._hog,
    "engine died": Faults._engine_dies,
    "engine hangs": Faults._engine_hangs,
    "actor killed": Faults._actor_dies,
    "actor stalls": Faults._actor_stalls,
    "rung does not start": Faults._bad_rung,
    "rung hangs": Faults._rung_hangs,
    "rung takes its node down": Faults._rung_wedges,
    "controller killed": Faults._kill_controller,
    "controller killed in a round": Faults._kill_in_round,
    "disk full": Faults._disk_full,
    "store away": Faults._store_away,
    "store is garbage": Faults._store_garbage,
    "store of another fleet": Faults._store_foreign,
    "store is an older copy": Faults._store_older,
    "clock jumps": Faults._clock_jumps,
    "reports lost": Faults._reports_lost,
    "applied": Faults._apply,
    "applied again": Faults._apply_again,
    "edited": Faults._edit,
    "removed": Faults._remove,
    "two applied at once": Faults._two_applies,
}
"""Every kind of fault, by the words that a run prints."""
