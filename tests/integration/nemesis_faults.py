"""Faults that the nemesis chooses from, each made and undone on a fleet of two simulated Sparks.

A choice is a value (`Fault`), so that a seed replays it. Ids of processes are looked up when the fault begins.
"""

import time
from dataclasses import dataclass, field

from node_faults import STATE, fill, free

NODES = ("spark1", "spark2")
LINK = "spark1-spark2"
STOPS_S = (5, 60)
RAIL_S = (1, 20)
DARK = NODES[1]
"""The node that loses its power."""
DARK_S = (2, 30)
FILE_S = (3, 25)
DISK_S = (3, 30)
DISK = "64m"
"""Size of the file system of a state directory, which a fault fills."""
CLOCK_S = (5, 30)
JUMPS_S = (-3600.0, 3600.0)

PROCESSES = {
    "gateway": ("ray::ServeReplica:gateway", ("spark1",)),
    "controller": ("ray::ControllerActor", ("spark1",)),
    "actor of pair": ("ray::ServeReplica:pair--", ("spark1",)),
    "actor of alone": ("ray::ServeReplica:alone--", ("spark2",)),
    "rank actor": ("ray::RankActor", ("spark2",)),
    "node actor": ("ray::NodeAgent", NODES),
    "Serve controller": ("ray::ServeController", ("spark1",)),
    "supervisor": ("sparkfleet.runtime.supervisor", NODES),
    "engine": ("", NODES),
    "raylet": ("raylet/raylet", NODES),
    "GCS": ("gcs_server", ("spark1",)),
    "watchdog": ("sparkfleet.node_daemon.node_cli keep", NODES),
}
"""Words of the command line, and the nodes on which such a process runs."""
KEEPS = (
    "gateway",
    "controller",
    "actor of pair",
    "actor of alone",
    "rank actor",
    "node actor",
    "Serve controller",
    "GCS",
    "watchdog",
)
"""Processes whose loss costs no engine, nor a stop, of any length or as `STOPS_KEEP_S` has it."""
STOPS_KEEP_S = {"supervisor": 60, "raylet": 49, "GCS": 49}
"""Longest stop of a process that costs no engine, seconds: Ray gives up a raylet that does not answer for 55 s."""
FILES = {
    "api.token": NODES[:1],
    "address.json": NODES[:1],
    "role.json": NODES,
    "sparkfleet.db": NODES[:1],
    "store.json": NODES[:1],
    "engine.secret": NODES,
    "ray.token": NODES,
}
"""With the nodes that have them. Left out: applied.json, usage/ and backups/, of whose loss docs/faults.md promises nothing;
engine.tokens, which only a change of secrets makes; controller.json, of which only a stale one could be put back."""
HARMS = ("away", "garbage", "unreadable")
NOTHING = 3
HARM = f"""
f=$(echo ~/.local/state/sparkfleet/*/)$1
case "$2" in
    look-away) [ ! -e "$f" ]; exit;;
    look-garbage) [ "$(cat "$f")" = garbage ]; exit;;
    look-unreadable) [ ! -r "$f" ]; exit;;
    undo-away) [ ! -e "$f.kept" ] || mv -f "$f.kept" "$f"; exit;;
    undo-garbage) mv -f "$f.kept" "$f"; exit;;
    undo-unreadable) chmod 600 "$f"; exit;;
esac
[ -e "$f" ] || exit {NOTHING}
case "$2" in
    away) mv "$f" "$f.kept";;
    garbage) cp -p "$f" "$f.kept" && printf garbage > "$f";;
    unreadable) chmod 0 "$f";;
esac
"""
COMMANDS = ("status", "plan", "up", "apply")
READS = "controller"
"""The process that is killed in a third of the cases while a file of the head is harmed: the next one reads it."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    """process, rail, power, file, disk, clock or command."""
    target: str
    node: str
    how: str
    seconds: float = 0.0
    keeps: tuple = field(default=())
    """Deployments whose engines must be the same afterwards."""
    then: str = ""
    """A process that is killed while a file is harmed."""
    ahead: float = 0.0
    """Seconds by which a clock jumps."""

    def __str__(self):
        long = f" for {self.seconds:.0f} s" if self.seconds else ""
        then = f", and the {self.then} is killed" if self.then else ""
        return f"{self.target} on {self.node}: {self.how}{long}{then}"


def small_node(seed):
    """The node whose state directory has a small disk: one with even seeds, the other with odd ones."""
    return NODES[seed % 2]


def choose(random, small=NODES[0]):
    """A fault, by a generator of random numbers.

    Args:
        random: the generator.
        small: the node with a small disk. It keeps its power, which that file system is lost with. So does the head in every
            case: the clients run there, and end with it (`test_fleet.py` reboots one).
    """
    kinds = {"process": 12, "rail": 3, "power": 1, "file": 4, "disk": 1, "clock": 1, "command": 2}
    if small == DARK:
        del kinds["power"]
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    if kind == "process":
        target = random.choice(sorted(PROCESSES))
        how = random.choice(("KILL", "STOP"))
        seconds = random.randint(*STOPS_S) if how == "STOP" else 0
        longest = STOPS_KEEP_S.get(target, STOPS_S[1] if target in KEEPS else 0)
        spares = seconds <= longest if how == "STOP" else target in KEEPS
        keeps = ("pair", "alone") if spares else ()
        return Fault(kind, target, random.choice(PROCESSES[target][1]), how, seconds, keeps)
    if kind == "rail":
        rail = random.choice((0, 1, None))
        name = "both rails" if rail is None else f"rail {rail}"
        return Fault(kind, name, "both", "cut", random.randint(*RAIL_S), ("alone",))
    if kind == "power":
        how = random.choice(("reboot", "off"))
        return Fault(kind, "power", DARK, how, random.randint(*DARK_S) if how == "off" else 0)
    if kind == "file":
        file, how = random.choice(sorted(FILES)), random.choice(HARMS)
        node = random.choice(FILES[file])
        then = random.choice((READS, "", ""))
        seconds = random.randint(*FILE_S)
        return Fault(kind, file, node, how, seconds, ("pair", "alone"), then if node == NODES[0] else "")
    if kind == "disk":
        target = "disk" if small == NODES[0] else "disk without the store"
        return Fault(kind, target, small, "full", random.randint(*DISK_S), ("pair", "alone"))
    if kind == "clock":
        ahead = random.choice(JUMPS_S)
        how, seconds = f"ahead by {ahead:.0f} s", random.randint(*CLOCK_S)
        return Fault(kind, "clock", random.choice(NODES), how, seconds, ("pair", "alone"), ahead=ahead)
    how = random.choice(("whole", "killed"))
    return Fault(
        kind,
        random.choice(COMMANDS),
        "here",
        how,
        random.uniform(0.5, 8) if how == "killed" else 0,
        ("pair", "alone"),
    )


class Hand:
    """Makes a fault, and undoes it.

    Args:
        fleet: a `PairFleet`.
        again: arguments of each command of `COMMANDS`.
        clocks: those of its nodes.
    """

    def __init__(self, fleet, again, clocks):
        self._clocks = clocks
        self._fleet = fleet
        self._again = again

    def strike(self, fault, meanwhile):
        """The fault from its beginning to its end; `meanwhile` is called every second of it. False: nothing to hit."""
        return getattr(self, f"_{fault.kind}")(fault, meanwhile)

    def _process(self, fault, meanwhile):
        pid = self._find(fault.target, fault.node)
        if pid is None:
            return False
        self._signal(fault.node, pid, fault.how)
        if fault.how == "STOP":
            self._pass(fault.seconds, meanwhile)
            self._signal(fault.node, pid, "CONT")
        return True

    def _find(self, target, node):
        """The id of a process, the lowest of several; None if there is none. A shell that cron runs it in is not it."""
        words = PROCESSES[target][0]
        listed = self._fleet.listed(node) if words else self._fleet.engines(node)
        others = ("hang_guard", "/bin/sh -c")
        found = (pid for pid, line in listed.items() if words in line and not any(o in line for o in others))
        return min(found, default=None)

    def _signal(self, node, pid, name):
        self._fleet.lab.exec(node, ["kill", f"-{name}", str(pid)])

    def _rail(self, fault, meanwhile):
        rail = {"rail 0": 0, "rail 1": 1}.get(fault.target)
        self._fleet.lab.cut(LINK, rail)
        self._pass(fault.seconds, meanwhile)
        self._fleet.lab.mend(LINK)
        return True

    def _power(self, fault, meanwhile):
        if fault.how == "reboot":
            self._fleet.lab.reboot(fault.node)
            return True
        self._fleet.lab.kill(fault.node)
        self._pass(fault.seconds, meanwhile)
        self._fleet.lab.boot(fault.node)
        return True

    def _file(self, fault, meanwhile):
        if self._harm(fault, fault.how).returncode == NOTHING:
            return False
        if fault.then and (pid := self._find(fault.then, fault.node)) is not None:
            self._signal(fault.node, pid, "KILL")
        self._pass(fault.seconds, meanwhile)
        undone = self._harm(fault, f"undo-{fault.how}")
        assert undone.returncode == 0, undone.stderr
        return True

    def remains(self, fault):
        """True if a file is still harmed; one that the fleet has written again is not."""
        return self._harm(fault, f"look-{fault.how}").returncode == 0

    def _harm(self, fault, how):
        return self._fleet.lab.exec(fault.node, ["sh", "-c", HARM, "sh", fault.target, how])

    def _disk(self, fault, meanwhile):
        fill(self._fleet, fault.node, STATE)
        self._pass(fault.seconds, meanwhile)
        free(self._fleet, fault.node, STATE)
        return True

    def _clock(self, fault, meanwhile):
        self._clocks.jump(fault.node, fault.ahead)
        self._pass(fault.seconds, meanwhile)
        self._clocks.jump(fault.node, 0.0)
        return True

    def _command(self, fault, meanwhile):
        self._again(fault.target, fault.seconds)
        return True

    def _pass(self, seconds, meanwhile):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            meanwhile()
            time.sleep(1)
