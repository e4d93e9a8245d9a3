"""Faults, drawn from a seed: machines, networks, disks, clocks, processes, models that do not start, and people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sparkfleet.engines.failure_signatures import Diagnosis
from sparkfleet.errors import Cause
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.group.group_name import GroupKey
from sparkfleet.lab.simulation.application import Outcome
from sparkfleet.lab.simulation.serve import DETECT_S, HANG_S
from sparkfleet.lab.simulation.store_place import Content
from sparkfleet.lab.simulation.world import UserAction, World, tool_lost
from sparkfleet.units import GIB

NAMES = ("a", "b")
"""Deployments of the simulated users."""
EVERY_CALL = ("list", "deploy", "retire", "renew")
"""Calls of Ray Serve."""


@dataclass(frozen=True)
class EventIntervals:
    """Mean times between two events, simulated seconds; inf for none."""

    fault_s: float
    drain_s: float
    race_s: float
    head_s: float = float("inf")


class Faults:
    """Injects one fault after another until it is ended, then takes back what it did.

    Args:
        world: suffers them.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._active = False

    def begin(self, every: EventIntervals) -> None:
        """Inject faults and races at random moments, and drain nodes."""
        self._active = True
        self._world.time.after(1.0, lambda: self._world.people.append(("apply", NAMES[0])))
        if every.fault_s != float("inf"):
            self._next(every.fault_s)
        if every.drain_s != float("inf"):
            self._next_drain(every.drain_s)
        if every.race_s != float("inf"):
            self._next_race(every.race_s)
        if every.head_s != float("inf"):
            self._next_head(every.head_s)

    def end(self) -> None:
        """No more faults; machines, network and disk are well, and every rung starts."""
        self._active = False
        self._world.bad.clear()
        self._world.broken.clear()
        self._world.channel.loses = self._world.calls.slow_s = self._world.calls.fails = 0.0
        self._world.processes.end_lingering()
        self._world.store.set_full(False)
        self._world.place.put("right")
        for name, node in self._world.fleet.nodes.items():
            node.cut = node.slow_report = False
            node.hog = 0
            node.without_tool = False
            if not node.up:
                self._world.fleet.power_on(name)
        self._world.time.after(30.0, self._world.processes.start)

    def _next(self, every_s: float) -> None:
        def happen() -> None:
            if not self._active:
                return
            name = self._chance.choice(sorted(FAULTS))
            self._world.record(name)
            FAULTS[name](self)
            self._next(every_s)

        self._world.time.after(self._chance.expovariate(1.0 / every_s), happen)

    # machines

    def _node(self) -> str:
        return self._chance.choice(self._world.names)

    def _reboot(self) -> None:
        self._world.off(self._node(), self._chance.uniform(40, 170))

    def _long_off(self) -> None:
        self._world.off(self._node(), self._chance.uniform(200, 3000))

    def _reboot_twice(self) -> None:
        name = self._node()
        self._world.off(name, 60)
        self._world.time.after(90, lambda: self._world.off(name, 60) if self._active else None)

    def _cut(self) -> None:
        if not (others := self._world.fleet.others):
            return  # the head alone: there is no network between nodes
        node = self._chance.choice(others)
        node.cut = True
        # Ray calls a silent node gone after about a minute.
        self._world.time.after(55.0, self._world.serve.notice_nodes)
        self._world.time.after(
            self._chance.choice((20.0, 100.0, 400.0, 2000.0)), partial(setattr, node, "cut", False)
        )

    def _silent_node(self) -> None:
        node = self._world.fleet.nodes[self._node()]
        node.slow_report = True
        self._world.time.after(self._chance.uniform(5, 300), partial(setattr, node, "slow_report", False))

    def _hog(self) -> None:
        node = self._world.fleet.nodes[self._node()]
        node.hog = self._chance.randrange(20, 105) * GIB
        self._world.time.after(self._chance.uniform(60, 1200), partial(setattr, node, "hog", 0))

    # engines and groups

    def _engine_dies(self) -> None:
        if self._world.fleet.engines:
            cause = self._chance.choice((None, Cause.MEMORY, Cause.TRANSIENT, Cause.UNKNOWN))
            diagnosis = Diagnosis(cause=cause, summary="it died") if cause else None
            self._world.serve.lose_engine(self._chance.choice(sorted(self._world.fleet.engines)), diagnosis)

    def _engine_hangs(self) -> None:
        ready = sorted(key for key, one in self._world.fleet.engines.items() if one.ready)
        if ready:
            key = self._chance.choice(ready)
            self._world.fleet.engines[key].hurt = "hangs"
            self._world.time.after(DETECT_S, lambda: self._found(key))

    def _found(self, key: GroupKey) -> None:
        engine = self._world.fleet.engines.get(key)
        if engine is not None and engine.hurt:
            self._world.serve.lose_engine(key, None)

    def _actor_dies(self) -> None:
        if self._world.serve.apps:
            self._world.serve.lose_actor(self._chance.choice(sorted(self._world.serve.apps)))

    def _actor_stalls(self) -> None:
        if self._world.serve.apps:
            app = self._world.serve.apps[self._chance.choice(sorted(self._world.serve.apps))]
            app.stalled = True
            self._world.time.after(self._chance.uniform(10, 60), partial(setattr, app, "stalled", False))

    def _bad_rung(self) -> None:
        cause = self._chance.choice(list(Cause))
        diagnosis = Diagnosis(cause=cause, summary="it does not start")
        takes = self._chance.uniform(2, 100)
        self._spoil(lambda launch: Outcome(takes, diagnosis))

    def _rung_hangs(self) -> None:
        diagnosis = Diagnosis(cause=Cause.UNKNOWN, summary="no line for 900 s")
        self._spoil(lambda launch: Outcome(HANG_S, diagnosis))

    def _rung_wedges(self) -> None:
        takes = self._chance.uniform(10, 100)
        self._spoil(lambda launch: Outcome(takes, takes_down=launch.candidate.shape.nodes[-1]))

    def _spoil(self, outcome: Callable[[GroupLaunch], Outcome]) -> None:
        key = (self._chance.choice(NAMES), self._chance.randrange(3))
        self._world.bad[key] = outcome
        self._world.time.after(self._chance.uniform(300, 7200), lambda: self._world.bad.pop(key, None))

    # the controller, its disk, its clock, its network

    def _kill_controller(self) -> None:
        self._world.processes.end(self._chance.uniform(1, 30))

    def _disk_full(self) -> None:
        self._world.store.set_full(True)
        self._world.time.after(self._chance.uniform(5, 400), lambda: self._world.store.set_full(False))

    def _misplace(self, content: Content) -> None:
        """Put something in the place of the store for a while; often the controller starts while it is there."""
        if not self._world.place.put(content):
            return
        if self._chance.random() < 0.5:
            self._world.time.after(self._chance.uniform(0, 20), lambda: self._world.processes.end(1.0))
        self._world.time.after(self._chance.uniform(5, 600), lambda: self._back(content))

    def _back(self, content: Content) -> None:
        if self._world.place.content == content:
            self._world.place.put("right")

    def _clock_jumps(self) -> None:
        self._world.time.jump(self._chance.choice((-86_400.0, -30.0, 30.0, 3600.0, 86_400.0)))

    def _reports_lost(self) -> None:
        self._world.channel.loses = self._chance.choice((0.2, 0.9))
        self._world.time.after(
            self._chance.uniform(10, 120), partial(setattr, self._world.channel, "loses", 0.0)
        )

    # people

    def _user(self, *actions: UserAction) -> None:
        self._world.people += [(action, self._chance.choice(NAMES)) for action in actions]

    def _next_drain(self, every_s: float) -> None:
        """A node is drained, for a while."""
        chance = self._world.drain_chance

        def happen() -> None:
            if not self._active:
                return
            node = chance.choice(self._world.names)
            self._world.record("node drained")
            self._world.people.append(("drain", node))
            back_s = chance.choice((60.0, 1200.0, 6000.0))
            self._world.time.after(back_s, lambda: self._world.people.append(("undrain", node)))
            self._next_drain(every_s)

        self._world.time.after(chance.expovariate(1.0 / every_s), happen)

    def _next_head(self, every_s: float) -> None:
        """The head is lost, and its owner moves it to another node; the lost one comes back later, or soon after."""
        chance = self._world.head_chance

        def happen() -> None:
            if not self._active:
                return
            others = [node.name for node in self._world.fleet.others if node.joined]
            if others and self._world.fleet.head.up:
                self._world.record("head lost and moved")
                moved_s = chance.choice((60.0, 600.0))
                back_s = moved_s + chance.choice((60.0, 170.0, 400.0, 3000.0))
                self._world.lose_head(chance.choice(others), moved_s, back_s)
            self._next_head(every_s)

        self._world.time.after(chance.expovariate(1.0 / every_s), happen)

    # races

    def _next_race(self, every_s: float) -> None:
        """Something happens at the same time as something else, or takes long, or fails."""
        chance = self._world.race_chance

        def happen() -> None:
            if not self._active:
                return
            name = chance.choice(sorted(RACES))
            self._world.record(name)
            RACES[name](self)
            self._next_race(every_s)

        self._world.time.after(chance.expovariate(1.0 / every_s), happen)

    def _controller_replaced(self) -> None:
        self._world.processes.replace(self._world.race_chance.uniform(2, 90))

    def _serve_slow(self) -> None:
        self._world.calls.slow_s = self._world.race_chance.choice((2.0, 15.0))
        lasts_s = self._world.race_chance.uniform(10, 300)
        self._world.time.after(lasts_s, partial(setattr, self._world.calls, "slow_s", 0.0))

    def _serve_fails(self) -> None:
        self._world.calls.failing = self._world.race_chance.choice((("deploy",), ("retire",), EVERY_CALL))
        self._world.calls.fails = self._world.race_chance.choice((0.1, 0.5, 1.0))
        lasts_s = self._world.race_chance.uniform(10, 300)
        self._world.time.after(lasts_s, partial(setattr, self._world.calls, "fails", 0.0))

    def _rung_dies(self) -> None:
        """A rung comes up and dies soon, again and again."""
        chance = self._world.race_chance
        cause = chance.choice((Cause.UNKNOWN, Cause.MEMORY))
        takes, serves = chance.uniform(2, 20), chance.uniform(1, 30)
        diagnosis = Diagnosis(cause=cause, summary="it died")
        key = (chance.choice(NAMES), chance.randrange(3))
        self._world.bad[key] = lambda launch: Outcome(takes, diagnosis, serves)
        self._world.time.after(chance.uniform(600, 3600), lambda: self._world.bad.pop(key, None))

    def _tool_away(self) -> None:
        """A node's container tool ends with all its containers, as in an update of its packages, and comes back later."""
        chance = self._world.race_chance
        name = chance.choice(self._world.names)
        node = self._world.fleet.nodes[name]
        node.without_tool = True
        for key, engine in sorted(self._world.fleet.engines.items()):
            if name in engine.nodes and engine.ready:
                self._world.serve.lose_engine(key, tool_lost(name, began=True))
        back_s = chance.choice((20.0, 300.0, 3000.0))
        self._world.time.after(back_s, partial(setattr, node, "without_tool", False))

    def _two_of_one_plan(self) -> None:
        self._world.people.append(("race", self._world.race_chance.choice(NAMES)))


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
    "controller killed in a round": lambda faults: faults._world.processes.end_in_round(),
    "disk full": Faults._disk_full,
    "store away": partial(Faults._misplace, content="away"),
    "store is garbage": partial(Faults._misplace, content="garbage"),
    "store of another fleet": partial(Faults._misplace, content="foreign"),
    "store is an older copy": partial(Faults._misplace, content="older"),
    "clock jumps": Faults._clock_jumps,
    "reports lost": Faults._reports_lost,
    "applied": lambda faults: faults._user("apply"),
    "applied again": lambda faults: faults._user("again"),
    "edited": lambda faults: faults._user("edit"),
    "removed": lambda faults: faults._user("remove"),
    "two applied at once": lambda faults: faults._user("apply", "apply"),
}
"""Every kind of fault, by the words that a run prints. A further one would change the run of every seed: it belongs in
`RACES`, and `Faults.end` takes it back."""

RACES: dict[str, Callable[[Faults], None]] = {
    "controller replaced while its process lives": Faults._controller_replaced,
    "calls of Serve are slow": Faults._serve_slow,
    "calls of Serve fail": Faults._serve_fails,
    "two applied from one generation": Faults._two_of_one_plan,
    "container tool away": Faults._tool_away,
    "rung dies again and again": Faults._rung_dies,
}
"""Every kind of race, and faults that came later. They are drawn by themselves, so that a run without them (`race_s` is
inf) is the same for a seed as before."""
