"""A soak: two simulated Sparks serve under load, with a fault every minute, and what a leak would leave is counted.

    scripts/soak                       half an hour: real Ray, real vLLM with TP=2, and another deployment beside it
    scripts/soak --minutes 5 --json out.json

After each fault both deployments have to serve again, and clients that ask all the while must not have been lied to: no
answer that ends as if it were whole, none that never ends. Between faults it counts, on each node, processes, memory, file
descriptors, ports and files, and on the head the rows of the store; at the end Ray's placement groups. After the first round
of faults none of them may go on growing. Needs root on Linux, as the lab does; prints a table, and exits with 1 where
something was wrong.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from asking import Asking
from lab_fleet import LabFleet

from sparkfleet.lab import Lab

PAIR = "name: pair\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\nparallel: {tp: 2}\n"
ALONE = "name: alone\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\nnodes: [spark2]\n"
RECOVERY_S = 400.0
"""After any fault both serve again within this time; a start takes 30 s of two idle processors."""
PAUSE_S = 1.0
"""Between questions: two processors have to start engines, too."""
SLACK = {"rss_mib": 60, "fds": 24, "processes": 4, "ports": 4, "rows": 0}
"""What a count may differ by between two settled moments: Ray keeps idle workers, and sockets that wait."""

BOUNDED = {"events": 10_000, "measurements": 2_000, "standings": 2}
"""Most rows of tables with a length of their own: of all, of each deployment, one a group (controlplane/state/store.py)."""

COUNT = """
import collections, json, os, pathlib, sqlite3
me = os.getuid()
kinds = collections.Counter()
rss, fds = collections.Counter(), collections.Counter()
names = {"ray::Controller": "controller", "ServeReplica:gateway": "gateway", "gcs_server": "gcs",
         "raylet/raylet": "raylet", "sparkfleet.node_daemon.ray_watchdog": "keeper", "ProxyActor": "proxy",
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

WATCHED = ("controller", "gateway", "gcs", "raylet", "keeper", "serve", "proxy")
"""Processes that live on through faults of engines: they are where a leak would grow."""


class Soak:
    """The fleet, its faults, and what was seen."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.lab = fleet.lab
        self.seen = []
        self.context = 512
        # Those that end the pair's group lie apart: five within ten minutes, and the breaker stops it for good.
        self.faults = (
            self.rank_1_is_killed,
            self.a_rail_is_cut_for_5_s,
            self.the_gateway_is_killed,
            self.ray_on_the_other_node_is_killed,
            self.the_other_engine_is_killed,
            self.rank_1s_supervisor_is_killed,
            self.the_controller_is_killed,
            self.the_other_deployment_is_changed,
            self.the_engine_core_stops,
            self.the_groups_actor_is_killed,
            self.the_other_node_is_rebooted,
            self.both_rails_are_cut_for_8_s,
            self.ray_on_the_head_is_killed,
        )

    # -- faults

    def rank_1_is_killed(self):
        self._kill("spark2", self._group("pair")["ranks"][1]["pid"])

    def the_other_engine_is_killed(self):
        self._kill("spark2", self._group("alone")["ranks"][0]["pid"])

    def rank_1s_supervisor_is_killed(self):
        pid = self._group("pair")["ranks"][1]["pid"]
        self._kill("spark2", self.lab.exec("spark2", ["ps", "-o", "ppid=", "-p", str(pid)]).stdout.strip())

    def the_gateway_is_killed(self):
        self._kill_named("spark1", "ServeReplica:gateway")

    def the_controller_is_killed(self):
        self._kill_named("spark1", "ray::Controller")

    def the_groups_actor_is_killed(self):
        self._kill_named("spark1", "ray::ServeReplica:pair")

    def ray_on_the_other_node_is_killed(self):
        self._kill_named("spark2", "raylet/raylet")

    def ray_on_the_head_is_killed(self):
        self._kill_named("spark1", "raylet/raylet")

    def the_engine_core_stops(self):
        self._kill_named("spark1", "EngineCore", "-STOP")

    def a_rail_is_cut_for_5_s(self):
        self._cut(0, 5)

    def both_rails_are_cut_for_8_s(self):
        self._cut(None, 8)

    def the_other_node_is_rebooted(self):
        self.lab.reboot("spark2")

    def the_other_deployment_is_changed(self):
        self.context = 768 - self.context % 512
        self.fleet.apply(ALONE.replace("512", str(self.context)), "alone.yaml")

    def _kill(self, node, pid, how="-9"):
        self.lab.exec(node, ["kill", how, str(pid)])

    def _kill_named(self, node, words, how="-9"):
        lines = self.lab.exec(node, ["ps", "-eo", "pid,args", "--no-headers"]).stdout.splitlines()
        found = [line.split()[0] for line in lines if words in line]
        if not found:
            raise AssertionError(f"nothing is called {words} on {node}")
        for pid in found:
            self._kill(node, pid, how)

    def _cut(self, rail, seconds):
        self.lab.cut("spark1-spark2", rail)
        time.sleep(seconds)
        self.lab.mend("spark1-spark2")

    # -- what is seen

    def serve(self):
        """Both deployments serve."""
        self.fleet.bring()
        self.fleet.ok("up")
        self.fleet.apply(PAIR, "pair.yaml")
        self.fleet.apply(ALONE, "alone.yaml")

    def serves(self):
        """Whether both answer, as their engines are now."""
        try:
            return all(
                self.fleet.is_ready(name) and self.fleet.ask("/completions", self._question(name))
                for name in ("pair", "alone")
            )
        except (AssertionError, ValueError, OSError):
            return False

    def count(self):
        """Everything that a leak would leave, by node."""
        found = {}
        for node in self.lab.nodes:
            found[node.name] = json.loads(self.fleet.python(node.name, COUNT))
        return found

    def _question(self, name):
        return {"model": name, "prompt": "A rail is", "max_tokens": 8, "temperature": 0}

    def _group(self, name):
        return max(self.fleet.deployment(name)["groups"], key=lambda group: group["generation"])

    def run(self, minutes, every_s):
        """Faults in turn, until the time is over; what was found wrong, in words."""
        wrong = []
        began = due = time.time()
        pair, alone = (Asking(self.fleet, name, streams=1, pause_s=PAUSE_S) for name in ("pair", "alone"))
        with pair, alone:
            for index in range(int(minutes * 60 / every_s)):
                fault = self.faults[index % len(self.faults)]
                time.sleep(max(0.0, due - time.time()))
                # Not made up for where a recovery took longer: faults in a row are more than the breaker lets pass.
                due = time.time() + every_s
                told = {"fault": fault.__name__.replace("_", " "), "at_s": round(time.time() - began)}
                at = time.time()
                fault()
                try:
                    time.sleep(2)  # what has died is not yet missed
                    self.fleet.until(self.serves, timeout=RECOVERY_S)
                except AssertionError as error:
                    wrong.append(f"{told['fault']}: does not serve again\n{error}")
                    break
                told["serves_again_s"] = round(time.time() - at, 1)
                told["answers"] = {"pair": dict(pair.ends), "alone": dict(alone.ends)}
                told["counted"] = self.count()
                self.seen.append(told)
                print(_line(told), flush=True)
        placed = self.fleet.placement_groups()
        if len(placed) != len(("pair", "alone")):
            wrong.append(f"placement groups: {placed}")
        for asking in (pair, alone):
            wrong += [f"dishonest: {answer}" for answer in asking.dishonest]
        return wrong + self.leaks()

    def leaks(self):
        """What has grown from round to round: the same moment of the first whole round and of the last."""
        rounds = len(self.faults)
        if len(self.seen) <= rounds:
            return []
        last = len(self.seen) - 1
        first = last % rounds or rounds
        if first == last:
            return []
        return [
            f"{node}: {what} grew from {before} to {after} between fault {first + 1} and fault {last + 1}"
            for node in self.seen[last]["counted"]
            for what, before, after, slack in _grown(
                self.seen[first]["counted"][node], self.seen[last]["counted"][node]
            )
            if after - before > slack
        ]


def _grown(before, after):
    """Counts side by side: (name, before, after, what it may differ by)."""
    yield "processes", sum(before["kinds"].values()), sum(after["kinds"].values()), SLACK["processes"]
    yield "listening ports", before["ports"], after["ports"], SLACK["ports"]
    for kind in WATCHED:
        for what in ("rss_mib", "fds"):
            yield f"{what} of {kind}", before[what].get(kind, 0), after[what].get(kind, 0), SLACK[what]
    for table, rows in after["rows"].items():
        yield f"rows of {table}", BOUNDED.get(table, before["rows"].get(table, 0)), rows, SLACK["rows"]


def _line(told):
    sums = {
        node: f"{sum(c['kinds'].values())} processes, {sum(c['rss_mib'].values())} MiB, {c['ports']} ports,"
        f" {c['tmp_mib'] + c['state_mib']} MiB of files"
        for node, c in told["counted"].items()
    }
    ends = " · ".join(
        f"{name}: {', '.join(f'{n} {end}' for end, n in sorted(ends.items()))}"
        for name, ends in told["answers"].items()
    )
    nodes = " | ".join(f"{node}: {words}" for node, words in sums.items())
    after = f"serves again after {told['serves_again_s']:5.1f} s"
    return f"{told['at_s']:5} s  {told['fault']:<36} {after}  {ends}\n         {nodes}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was counted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, Lab.up(nodes=2, shares=LabFleet.shares()) as lab:
        fleet = LabFleet(lab, Path(place))
        soak = Soak(fleet)
        soak.serve()
        wrong = soak.run(options.minutes, options.every)
        fleet.ok("down")
        left = {node.name: fleet.processes(node.name) for node in lab.nodes}
        wrong += [f"after `down`, on {node}: {line}" for node, lines in left.items() for line in lines]
        if options.json:
            options.json.write_text(json.dumps({"faults": soak.seen, "wrong": wrong}, indent=1))
    print("\n".join(wrong) or f"Nothing wrong after {len(soak.seen)} faults.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
