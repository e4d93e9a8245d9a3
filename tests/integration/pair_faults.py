"""Places, processes, answers and the store of the two Sparks that tests of faults share."""

import time

import yaml
from node_faults import STATE
from pair_fleet import TINY

HERE, THERE = "nodes: [spark1]\n", "nodes: [spark2]\n"
TWO = "parallel: {tp: 2}\n"
PAIR = TINY.replace("name: tiny", "name: pair")


def pids(fleet, name="tiny"):
    return [rank["pid"] for rank in fleet.group(name)["ranks"]]


def running(fleet, node, words):
    """Process ids of a node whose command line has these words."""
    return sorted(pid for pid, line in fleet.listed(node).items() if words in line)


def whole_again(fleet, asking, timeout=60):
    """Wait for a whole answer to a question from now on."""
    again = time.time()
    fleet.until(lambda: asking.whole_since(again), timeout=timeout)


def store_of(fleet):
    """The store's file on the head."""
    name = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())["fleet"]
    return f"{STATE}/{name}/sparkfleet.db"


def is_held(fleet, words):
    """True if `status` has it that the controller waits for its store, for this reason."""
    code, out, err = fleet.run("status")
    return code == 5 and "held" in out and words in " ".join(f"{out}{err}".split())
