"""Two simulated Sparks with a fleet, which files of tests share: each finds it up, whole and empty, and leaves it so.

Engines on it are real vLLM, or, for what is to be proved of everything around an engine, the packaged fake one: a real
process under a real supervisor, whose ranks meet over the same rails. `--real` makes all of them real, with production
timeouts, but for files that are marked `any_engine`: their faults are of what is around it.
"""

import contextlib
import itertools
import json
import os

import yaml
from lab_fleet import UNCOMPILED, LabFleet, lab_of
from node_environment import node_environment
from stand_in import faked, stand_in

from sparkfleet.engines.vllm_plugins.bounded_waits import SPIN

LINK = "spark1-spark2"
NODES = ("spark1", "spark2")
TINY = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\n"
QUICK = {
    "stuck_s": 3,
    "idle_s": 6,
    "proof_s": 8,  # two processors may be busy with another start
    "health_every_s": 0.5,
    "unwell_s": 4,
    "memory_s": 20,  # a lab gives memory back at once
    "pause_s": 0.2,
    "longest_pause_s": 2,
}
"""Timeouts where an engine answers in milliseconds."""
LONG_START_S = 25
"""Of a fake engine: time enough to do something to a node meanwhile."""


class PairFleet(LabFleet):
    """The fleet, and what is done to it.

    Args:
        lab: two Sparks, which see `directory`.
        directory: for files of the tests.
        real: whether no engine is a fake one.
    """

    def __init__(self, lab, directory, real):
        super().__init__(lab, directory, f"environment: {node_environment(directory)}\n")
        self.real = real
        """True if engines of the present file of tests are real."""
        self._production = real
        self._runs = itertools.count()
        python = stand_in(directory)
        inventory = yaml.safe_load((directory / "inventory.yaml").read_text())
        for node in inventory["nodes"].values():
            node["engines"] = {"vllm": {"python": str(python)}}
        if not real:
            inventory["timeouts"] = QUICK
        self.write("inventory.yaml", yaml.safe_dump(inventory))

    @property
    def timeouts(self):
        """Those of this fleet, as far as they are not production's."""
        return {} if self._production else QUICK

    def spec(self, more="", text=TINY, start_s=0, real=False, says=""):
        """A deployment, of a fake engine unless all are real or this one is to be."""
        if self.real or real:
            return text + more + UNCOMPILED.replace("}", f", {SPIN}: '0.002'}}")  # as a rule has it on Sparks
        return faked(text + more, start_s, says)

    def anew(self, spec):
        """The same as another generation: the breaker has counted no fall of it, and it is not remembered as one that did
        not start."""
        return spec.replace("env: {", f"env: {{RUN: '{next(self._runs)}', ")

    def serve(self, spec):
        """Have this served, and nothing else."""
        name = yaml.safe_load(spec)["name"]
        for other in [d["name"] for d in self.deployments() if d["name"] != name]:
            self.ok("delete", "--yes", other)
        out = self.apply(spec)
        self.until(lambda: self.ready_group(name), timeout=400)
        return out

    def is_sound(self, answer):
        """True if the answer is the engine's: of the real one, the text about rails that its model has learnt."""
        return "QSFP" in answer if self.real else bool(answer.strip())

    def breaks(self, node, words):
        """From now on vLLM on a node ends with these words; "": it does not."""
        (self.directory / "faults" / node).write_text(words)

    def listed(self, node):
        """Command lines on a node, by process id."""
        lines = self.lab.exec(node, ["ps", "-eo", "pid,args", "--no-headers"]).stdout.splitlines()
        return {int(pid): words for pid, _, words in (line.strip().partition(" ") for line in lines)}

    def engines(self, node):
        """Command lines of engines on a node, by process id."""
        words = ("vllm.entrypoints", "EngineCore", "sparkfleet.engines.fake")
        return {pid: line for pid, line in self.listed(node).items() if any(word in line for word in words)}

    def store_copies(self, node, directory):
        """SHA-256 and name of each copy of the store in a directory of a node's state, by their age."""
        script = f"cd ~/.local/state/sparkfleet/*/{directory} && sha256sum *.db"
        return self.lab.exec(node, ["sh", "-c", script]).stdout.splitlines()

    @contextlib.contextmanager
    def listening_at(self, **gateway):
        """The gateway as `gateway:` of an inventory has it; afterwards where it was."""
        text = (self.directory / "inventory.yaml").read_text()
        now = self.fleet_status()["listening"]
        before = {"host": now["host"], "port": now["port"]}
        try:
            self.write_gateway(**{**before, **gateway})
            self.ok("up")
            yield
        finally:
            self.write_gateway(**before)
            self.ok("up")
            self.write("inventory.yaml", text)

    def write_gateway(self, **gateway):
        """Writes `gateway:` of the inventory, and changes nothing that runs."""
        inventory = yaml.safe_load((self.directory / "inventory.yaml").read_text())
        self.write("inventory.yaml", yaml.safe_dump({**inventory, "gateway": gateway}))

    def clear(self):
        """As a file of tests finds it: nodes, cables and knobs healthy, nothing served, nothing of an engine left."""
        for node in NODES:
            self.breaks(node, "")
            self.lab.boot(node)
            self.lab.heal(node)
        self.lab.mend(LINK)
        self.until(lambda: all(node["joined"] for node in self.status()["nodes"]), timeout=120)
        for name in [d["name"] for d in self.deployments()]:
            self.ok("delete", "--yes", name)
        self.until(lambda: self.placement_groups() == [], timeout=60)
        for node in NODES:
            self.until(lambda node=node: not self.engines(node), timeout=60)

    def end(self):
        """Down, and nothing is left."""
        self.ok("down")
        for look in (self.processes, self.listening):
            assert {node: look(node) for node in NODES} == {node: [] for node in NODES}


class Pair:
    """The lab with its fleet, from its first use to its end.

    Args:
        directory: see `PairFleet`.
        real: see `PairFleet`.
    """

    def __init__(self, directory, real):
        os.chmod(directory, 0o755)
        self._lab = lab_of(2, shares=(*LabFleet.shares(), directory))
        self._lab.__enter__()
        try:
            self.fleet = PairFleet(self._lab, directory, real)
            self.fleet.bring()
            self.fleet.ok("up")
        except BaseException:
            self._lab.__exit__(None, None, None)
            raise

    def end(self):
        """Take the fleet down and the lab away."""
        try:
            self.fleet.end()
        finally:
            self.abandon()

    def abandon(self):
        """Take the lab away, whatever runs in it."""
        self._lab.__exit__(None, None, None)


def events_of(fleet, name):
    """Events of the present generation, in order."""
    told = json.loads(fleet.ok("describe", name, "--json"))
    now = told["deployment"]["generation"]
    return told["deployment"], [event for event in told["events"] if event["generation"] == now]


@contextlib.contextmanager
def fleet_of(count, directory):
    """A fleet of its own on so many Sparks, up, for tests that switch nodes off for good.

    Its engines are fake ones: real processes under real supervisors, over the same rails.
    """
    os.chmod(directory, 0o755)
    with lab_of(count, shares=(*LabFleet.shares(), directory)) as lab:
        found = PairFleet(lab, directory, real=False)
        found.bring()
        found.ok("up")
        yield found
