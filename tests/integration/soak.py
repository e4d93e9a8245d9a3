"""A nemesis: two simulated Sparks serve under load while faults that a seed chooses hit them, and invariants are held.

    scripts/soak                            half an hour, a new seed: real Ray, real SSH, the fake engine
    scripts/soak --seed 7 --minutes 10      the same faults again
    scripts/soak --real                     real vLLM with TP=2, production timeouts
    scripts/soak --list --seed 7            prints the faults of a seed, and does nothing

A fault hits one process (of ours, of Ray, of an engine: killed, or stopped for 5 to 60 s), a rail, a node's power, a file of
the state directory (away, garbage, unreadable), the disk of a node's state directory (full), a node's clock (an hour
forth or back), or is a second command line (`nemesis_faults.py`). During and after each:

- no engine ends that was alive and wanted without an event that names the reason, and none at all for faults that may not
  cost one;
- no state is lost: deployments, their generations and files are the same;
- within 15 s `status` shows every fault that is still there, or an event names it;
- both deployments serve again, in bounded time;
- no orphan stays: engines, supervisors, placement groups, listening ports, shared memory;
- clients get whole answers or honest errors.

Between faults it counts processes, memory, descriptors, ports and rows, which may not go on growing. Needs root on Linux, as
the lab does. On a failure it prints the seed and the timeline, and exits with 1.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from asking import Asking
from lab_fleet import LabFleet
from nemesis_faults import COMMANDS, DISK, NODES, Hand, choose, small_node
from node_faults import STATE, Clocks, small_disk
from pair_fleet import TINY, PairFleet

from sparkfleet.lab import Lab

RECOVERY_S = 240.0
"""After any fault both serve again within this time; a start takes 30 s of two idle processors."""
NAMED_S = 15.0
"""A fault that lasts longer is in `status`, or in an event, by then."""
ORPHAN_S = 60.0
"""For processes that end by themselves: a lease runs out after 30 s."""
LOSSES = 3
WINDOW_S = 600.0
"""Engines that one deployment may lose within this time: five, and the breaker stops it for good, as it should."""
PAUSE_S = 1.0
"""Between questions: two processors have to start engines, too."""
SLACK = {"rss_mib": 60, "fds": 24, "processes": 6, "ports": 4, "rows": 0}
"""Difference that is allowed in a count between two settled moments: Ray keeps idle workers, and sockets that wait."""

BOUNDED = {"events": 10_000, "measurements": 2_000, "standings": 2, "history": 100, "usage_marks": 200}
"""Most rows of tables with a length of their own: of all, of each deployment, one a group, one for each model and gateway of
the last 60 days (controlplane/state/tables/)."""

EVENTS = """
import json, pathlib, sys, urllib.request
(file,) = pathlib.Path.home().glob(".local/state/sparkfleet/*/address.json")
api, token = json.loads(file.read_text())["api"], (file.parent / "api.token").read_text()
asked = urllib.request.Request(api + "/v1/events?after=" + sys.argv[1], headers={"authorization": "Bearer " + token})
sys.stdout.write(urllib.request.urlopen(asked, timeout=20).read().decode())
"""

COUNT = """
import collections, json, os, pathlib, sqlite3
me = os.getuid()
kinds = collections.Counter()
rss, fds = collections.Counter(), collections.Counter()
names = {"ray::Controller": "controller", "ServeReplica:gateway": "gateway", "gcs_server": "gcs",
         "raylet/raylet": "raylet", "sparkfleet.node_daemon.node_cli keep": "keeper", "ProxyActor": "proxy",
         "ServeController": "serve", "EngineCore": "engine", "runtime.supervisor": "supervisor", "RankActor": "rank"}
inodes = set()
for entry in pathlib.Path("/proc").iterdir():
    if not entry.name.isdigit() or int(entry.name) == os.getpid():
        continue
    try:
        if entry.stat().st_uid != me:
            continue
        words = (entry / "cmdline").read_bytes().replace(bytes(1), b" ").decode(errors="replace")
        held = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
        pages = int((entry / "statm").read_text().split()[1])
    except OSError:
        continue
    kind = next((name for sign, name in names.items() if sign in words), "other")
    kinds[kind] += 1
    rss[kind] += pages * os.sysconf("SC_PAGE_SIZE") // (1 << 20)
    fds[kind] += len(held)
    inodes |= {link[8:-1] for link in held if link.startswith("socket:")}
ports = 0
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).readlines()[1:]:
        fields = line.split()
        ports += fields[3] == "0A" and fields[9] in inodes
def size(path):
    return sum(f.lstat().st_size for f in path.rglob("*") if not f.is_dir()) // (1 << 20) if path.exists() else 0
rows = {}
for file in pathlib.Path.home().glob(".local/state/sparkfleet/*/sparkfleet.db"):
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        rows[table] = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
print(json.dumps({"kinds": kinds, "rss_mib": rss, "fds": fds, "ports": ports, "rows": rows,
                  "state_mib": size(pathlib.Path.home() / ".local/state/sparkfleet"),
                  "tmp_mib": size(pathlib.Path(f"/tmp/sparkfleet-{me}")),
                  "shm_mib": size(pathlib.Path("/dev/shm"))}))
"""

STRAYS = """
import json, os, pathlib
me = os.getuid()
parents, words, sockets, used = {}, {}, {}, set()
for entry in pathlib.Path("/proc").iterdir():
    try:
        if not entry.name.isdigit() or entry.stat().st_uid != me:
            continue
        pid = int(entry.name)
        parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        words[pid] = (entry / "cmdline").read_bytes().replace(bytes(1), b" ").decode(errors="replace").strip()
        links = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
        used |= {line.split(maxsplit=5)[-1].strip() for line in open(entry / "maps")} | set(links)
        sockets |= {link[8:-1]: pid for link in links if link.startswith("socket:")}
    except OSError:
        continue
def line_of(pid):
    while pid in words:
        yield pid
        pid = parents.get(pid, 0)
own = set(line_of(os.getpid()))
def belongs(pid, signs):
    return pid in own or any(sign in words[one] for one in line_of(pid) for sign in signs)
supervisor = "sparkfleet.runtime.supervisor"
ours = (supervisor, "sparkfleet.node_daemon", "gcs_server", "raylet", "ray::", "/ray/")
engines = ("vllm.entrypoints", "EngineCore", "sparkfleet.engines.fake")
ports = {}
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in sockets:
            ports[int(fields[1].rpartition(":")[2], 16)] = sockets[fields[9]]
def is_own(path):
    try:
        return path.is_file() and path.lstat().st_uid == me
    except OSError:  # Ray removes its own at once
        return False
shared = list(filter(is_own, pathlib.Path("/dev/shm").iterdir()))
print(json.dumps({
    "supervisors": sum(supervisor in line for pid, line in words.items() if pid not in own),
    "engines": [line for pid, line in words.items()
                if any(one in line for one in engines) and not belongs(pid, (supervisor,))],
    "ports": [f"{port} of {words[pid]}" for port, pid in sorted(ports.items()) if not belongs(pid, ours)],
    "shared": [one.name for one in shared if str(one) not in used and not one.name.startswith("libpod_")],
}))
"""
"""Of one node: its supervisors, engines that none holds, ports on which neither a rank nor Ray nor a part of the fleet
listens, and shared memory that no process uses (podman's locks have no process)."""

WATCHED = ("controller", "gateway", "gcs", "raylet", "keeper", "serve", "proxy")
"""Processes that live on through faults of engines: they are where a leak would grow."""


class Nemesis:
    """The fleet, what hits it, and what was seen.

    Args:
        fleet: a `PairFleet` that serves nothing.
        seed: of the faults.
        clocks: those of its nodes.
    """

    def __init__(self, fleet, seed, clocks):
        self.fleet = fleet
        self._random = random.Random(seed)
        self._small = small_node(seed)
        self._hand = Hand(fleet, self._command, clocks)
        self._lost = []
        self._began = time.time()
        self.timeline = []
        self.wrong = []
        self.counted = []

    def serve(self):
        """Both deployments serve."""
        self.fleet.apply(self.fleet.spec("parallel: {tp: 2}\n", TINY.replace("tiny", "pair", 1)), "pair.yaml")
        self.fleet.apply(self.fleet.spec("nodes: [spark2]\n", TINY.replace("tiny", "alone", 1)), "alone.yaml")
        self.fleet.until(self._serves, timeout=RECOVERY_S)

    def run(self, minutes, every_s):
        """Faults until the time is over, or until one is not recovered from."""
        self._began = time.time()
        pair, alone = (
            Asking(self.fleet, name, streams=1, tokens=16, pause_s=PAUSE_S) for name in ("pair", "alone")
        )
        with pair, alone:
            while time.time() - self._began < minutes * 60 and self._hit(self._next(), every_s):
                pass
        for asking in (pair, alone):
            self.wrong += [f"a client got a dishonest answer: {answer}" for answer in asking.dishonest]
            self._say("clients", f"{asking.ends}")
        self.wrong += _grown(self.counted)

    def _next(self):
        """The next fault; one that may cost engines only as long as the breaker lets them start again."""
        while True:
            fault = choose(self._random, self._small)
            recent = sum(time.time() - at < WINDOW_S for at in self._lost)
            if len(fault.keeps) == len(("pair", "alone")) or recent < LOSSES:
                return fault

    def _hit(self, fault, every_s):
        before, at = self._state(), time.time()
        self._named_at = None
        self._say("fault", str(fault))
        if not self._hand.strike(fault, lambda: self._look(fault, before, at)):
            self._say("fault", "there is none to hit")
            return True
        lasted = time.time() - at
        try:
            time.sleep(2)  # what has died is not yet missed
            self.fleet.until(self._serves, timeout=RECOVERY_S)
        except AssertionError as error:
            self._complain(f"{fault}: does not serve again within {RECOVERY_S:.0f} s\n{error}")
            return False
        self._say("serves", f"again {time.time() - at - lasted:.0f} s after its end")
        self._judge(fault, before, lasted)
        self.counted.append(self._count())
        time.sleep(max(0.0, at + every_s - time.time()))
        return True

    def _judge(self, fault, before, lasted):
        after = self._state()
        since = [event for event in self._events(before["event"]) if event["kind"] != "progress"]
        for event in since:
            self._say("event", _event_line(event)[:200])
        for name, pids in before["engines"].items():
            if after["engines"][name] == pids:
                continue
            self._lost.append(time.time())
            reasons = [
                e
                for e in since
                if e["deployment"] == name and e["kind"] in ("failed", "lost", "retire") and e["message"]
            ]
            self._say("lost", f"the engine of {name}")
            if name in fault.keeps:
                self._complain(f"{fault}: cost the engine of {name}: {reasons or 'without a reason'}")
            elif not reasons:
                self._complain(f"{fault}: the engine of {name} was lost, and no event names the reason")
        if after["wanted"] != before["wanted"]:
            self._complain(f"{fault}: the state changed from {before['wanted']} to {after['wanted']}")
        if not words_of(fault):
            pass
        elif lasted > NAMED_S + 2 and self._named_at is None:
            self._complain(f"{fault}: neither status nor an event named it within {lasted:.0f} s")
        elif self._named_at and self._named_at > NAMED_S + 3:
            self._complain(f"{fault}: named only after {self._named_at:.0f} s")
        self._orphans(fault)

    def _orphans(self, fault):
        deadline = time.monotonic() + ORPHAN_S
        while (found := self._strays()) and time.monotonic() < deadline:
            time.sleep(2)
        for line in found:
            self._complain(f"{fault}: an orphan: {line}")

    def _strays(self):
        """Whatever runs, listens or is left beside what the groups report. No deployment here has an image, so there are no
        containers: `tests/runtime/test_podman.py` has theirs."""
        groups = [group for one in self.fleet.deployments() for group in one["groups"]]
        ranks = [rank for group in groups for rank in group["ranks"]]
        found = []
        for node in NODES:
            there = json.loads(self.fleet.python(node, STRAYS))
            expected = sum(rank["node"] == node for rank in ranks)
            if there["supervisors"] != expected:
                found.append(f"{there['supervisors']} supervisors on {node} for {expected} ranks")
            found += [f"an engine without a supervisor on {node}: {line[:160]}" for line in there["engines"]]
            found += [f"a listening port on {node}: {line[:160]}" for line in there["ports"]]
            found += [f"/dev/shm/{name} on {node}, which no process uses" for name in there["shared"]]
        placed = self.fleet.placement_groups()
        if len(placed) != len(groups):
            found.append(f"placement groups {placed} for {len(groups)} groups")
        return found

    def _look(self, fault, before, at):
        """During a fault: has it been named? A file that the fleet has written again needs no name."""
        if self._named_at is not None or time.time() - at < 1:
            return
        mended = fault.kind == "file" and not self._hand.remains(fault)
        if mended or self._is_named(fault, before):
            self._named_at = time.time() - at
            self._say("mended" if mended else "named", f"after {self._named_at:.0f} s")

    def _is_named(self, fault, before):
        status = self.fleet.fleet_status()
        if not status and fault.target == "controller":
            return True  # every verb says so, with an exit code
        if not status and fault.kind == "file":
            _, out, err = self.fleet.run("status")
            return fault.target in f"{out}{err}"
        lines = [line for line in _lines(status) if line not in before["lines"]] if status else []
        lines += [
            _event_line(event) for event in self._events(before["event"]) if event["kind"] != "progress"
        ]
        return any(word in line for word in words_of(fault) for line in lines)

    # -- what is there

    def _serves(self):
        try:
            return all(
                self.fleet.is_ready(name) and self.fleet.ask("/completions", _question(name))
                for name in ("pair", "alone")
            )
        except (AssertionError, ValueError, OSError):
            return False

    def _state(self):
        status = self.fleet.until(self.fleet.fleet_status, timeout=60)
        deployments = {one["name"]: one for one in status["deployments"]}
        return {
            "event": status["last_event"],
            "lines": _lines(status),
            "wanted": {name: (one["generation"], one["spec"]) for name, one in deployments.items()},
            "engines": {
                name: [rank["pid"] for group in one["groups"] for rank in group["ranks"]]
                for name, one in deployments.items()
            },
        }

    def _events(self, after):
        done = self.fleet.lab.exec("spark1", ["python3", "-I", "-c", EVENTS, str(after)])
        return json.loads(done.stdout)["events"] if done.returncode == 0 else []

    def _command(self, verb, seconds):
        """A second command line, killed after some seconds if they are given."""
        argv = {"apply": ["apply", "--yes", "pair.yaml"], "plan": ["plan", "pair.yaml"]}.get(verb, [verb])
        self.fleet.killed(argv, seconds)

    def _count(self):
        return {node: json.loads(self.fleet.python(node, COUNT)) for node in NODES}

    def _say(self, kind, words):
        line = f"{time.time() - self._began:6.0f} s  {kind:<8} {words}"
        self.timeline.append(line)
        print(line, flush=True)

    def _complain(self, words):
        self.wrong.append(words)
        self._say("WRONG", words.partition("\n")[0])


def words_of(fault):
    """Words of which `status` or an event has one while a fault lasts; () for a fault that needs no name."""
    return tuple(word.format(node=fault.node) for word in NAMES.get(fault.target, (fault.target,)))


NAMES = {
    "gateway": (" gateway: ",),
    "controller": ("controller error: ",),
    "actor of pair": ("pair",),
    "actor of alone": ("alone",),
    "rank actor": ("has not answered", "rank's actor"),
    "node actor": ("{node} does not answer",),
    "Serve controller": ("Ray Serve",),
    "supervisor": ("has not answered", "supervisor"),
    "engine": ("it hangs", "no token", "The engine exited"),
    "raylet": ("raylet", "{node} does not answer", "{node} left the fleet"),
    "GCS": ("GCS",),
    "watchdog": ("watchdog",),
    **dict.fromkeys(("rail 0", "rail 1", "both rails"), ("no carrier",)),
    "power": ("{node} does not answer", "{node} left the fleet"),
    "disk": ("disk",),
    # What runs there writes nothing that it cannot do without; a start that needs room names it.
    "disk without the store": (),
    # An hour ahead harms nothing until it is set back, and that ends at once with an event of the head's.
    "clock": (),
    # A second command line is no fault.
    **dict.fromkeys(COMMANDS, ()),
}
"""By target, words of the product by which it is named; a file by its name. A target without words has its reason above."""


def _lines(status):
    """Everything that `status` names, each as a line."""
    return [
        *(f"{node['name']} left the fleet" for node in status["nodes"] if not node["joined"]),
        *(
            f"{one['name']} {one['state']}: {one['detail']}"
            for one in status["deployments"]
            if one["state"] != "ready" or one["detail"]
        ),
        *filter(None, [status.get("trouble")]),
        *status["warnings"],
    ]


def _event_line(event):
    return f"{event['subject']} {event['kind']}: {event['message']}"


def _question(name):
    return {"model": name, "prompt": "A rail is", "max_tokens": 8, "temperature": 0}


def _grown(counted):
    """Counts that grew from the first settled moments to the last; before the third fault a fleet warms up."""
    if len(counted) < 6:
        return []
    return [
        f"{node}: {what} grew from {before} to {after} between fault 3 and fault {len(counted)}"
        for node in counted[-1]
        for what, before, after, slack in _counts(counted[2][node], counted[-1][node])
        if after - before > slack
    ]


def _counts(before, after):
    """Counts side by side: (name, before, after, what it may differ by)."""
    yield "processes", sum(before["kinds"].values()), sum(after["kinds"].values()), SLACK["processes"]
    yield "listening ports", before["ports"], after["ports"], SLACK["ports"]
    yield "shared memory (MiB)", before["shm_mib"], after["shm_mib"], 1
    for kind in WATCHED:
        for what in ("rss_mib", "fds"):
            yield f"{what} of {kind}", before[what].get(kind, 0), after[what].get(kind, 0), SLACK[what]
    for table, rows in after["rows"].items():
        yield f"rows of {table}", BOUNDED.get(table, before["rows"].get(table, 0)), rows, SLACK["rows"]


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--every", type=float, default=30, metavar="SECONDS", help="from one fault to the next, at least"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--real", action="store_true", help="real vLLM and production timeouts")
    parser.add_argument("--list", action="store_true", help="print the first 50 faults of the seed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the timeline and everything that was counted"
    )
    return parser.parse_args()


def main():
    options = _options()
    print(f"seed {options.seed}", flush=True)
    if options.list:
        chooser = random.Random(options.seed)
        print("\n".join(str(choose(chooser, small_node(options.seed))) for _ in range(50)))
        return 0
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        os.chmod(directory, 0o755)
        with Lab.up(nodes=2, shares=(*LabFleet.shares(), directory)) as lab:
            fleet = PairFleet(lab, directory, options.real)
            fleet.bring()
            clocks = Clocks(fleet, NODES)
            small_disk(fleet, small_node(options.seed), STATE, DISK)
            fleet.ok("up")
            nemesis = Nemesis(fleet, options.seed, clocks)
            nemesis.serve()
            nemesis.run(options.minutes, options.every)
            fleet.ok("down")
            left = {node: fleet.processes(node) for node in NODES}
    wrong = nemesis.wrong + [
        f"after `down`, on {node}: {line}" for node, lines in left.items() for line in lines
    ]
    if options.json:
        shown = {
            "seed": options.seed,
            "timeline": nemesis.timeline,
            "wrong": wrong,
            "counted": nemesis.counted,
        }
        options.json.write_text(json.dumps(shown, indent=1))
    if wrong:
        print(f"\nseed {options.seed}; its timeline:\n" + "\n".join(nemesis.timeline) + "\n\nWrong:")
    print("\n".join(wrong) or f"Nothing wrong after {len(nemesis.counted)} faults.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
