"""The faults of `scripts/soak`: a seed replays them, and every part of the catalogue has its turn."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from nemesis_faults import COMMANDS, FILES, HARMS, JUMPS_S, NODES, PROCESSES, Fault, choose, small_node

STOPPED = Fault("process", "gateway", "spark1", "STOP", 10.0)


def faults(seed, count=2000, small=NODES[0]):
    chooser = random.Random(seed)
    return [choose(chooser, small) for _ in range(count)]


def test_a_seed_replays_its_faults_and_another_has_others():
    assert faults(7) == faults(7)
    assert faults(7, 20) != faults(8, 20)


def test_everything_that_can_be_hit_is_hit():
    found = faults(1)
    processes = {(one.target, one.node, one.how) for one in found if one.kind == "process"}
    assert processes == {
        (target, node, how)
        for target, (_, nodes) in PROCESSES.items()
        for node in nodes
        for how in ("KILL", "STOP")
    }
    assert {(one.target, one.how) for one in found if one.kind == "file"} == {
        (name, how) for name in FILES for how in HARMS
    }
    assert {one.target for one in found if one.kind == "command"} == set(COMMANDS)
    assert {one.target for one in found if one.kind == "rail"} == {"rail 0", "rail 1", "both rails"}
    assert {one.how for one in found if one.kind == "power"} == {"reboot", "off"}
    assert {(one.node, one.how) for one in found if one.kind == "disk"} == {("spark1", "full")}
    assert {(one.node, one.ahead) for one in found if one.kind == "clock"} == {
        (node, seconds) for node in NODES for seconds in JUMPS_S
    }


def test_either_nodes_disk_is_filled_and_the_node_with_it_keeps_its_power():
    assert {small_node(seed) for seed in range(2)} == set(NODES)
    for node, dark in zip(NODES, ({"spark2"}, set()), strict=True):
        found = faults(1, small=node)
        assert {(one.node, one.keeps) for one in found if one.kind == "disk"} == {(node, ("pair", "alone"))}
        assert {one.node for one in found if one.kind == "power"} == dark


def test_a_stop_lasts_and_what_may_cost_an_engine_is_marked():
    for one in faults(2):
        if one.how == "STOP":
            assert 5 <= one.seconds <= 60
        if one.target in ("engine", "power") or (one.target, one.how) in (
            ("raylet", "KILL"),
            ("supervisor", "KILL"),
        ):
            assert one.keeps == ()
        if one.target in ("gateway", "controller", "actor of pair", "rank actor"):
            assert one.keeps == ("pair", "alone")
        if one.target == "GCS" or (one.target, one.how) == ("raylet", "STOP"):
            assert one.keeps == (("pair", "alone") if one.seconds < 50 else ())


class StubFleet:
    """A fleet as a nemesis reads it: one deployment with one rank, all well until a test changes it."""

    def __init__(self):
        self.lab = self
        self.returncode = 0
        self.answers = True
        self.status = {}
        self.verb = (0, "", "")
        self.event = 10
        self.log = []
        self.supervisors = 1
        self.left = {}
        self.placed = ["one"]
        self.one = {
            "name": "pair",
            "state": "ready",
            "detail": "",
            "generation": 1,
            "spec": "{}",
            "groups": [{"ranks": [{"pid": 100, "node": "spark1"}]}],
        }

    def until(self, condition, timeout):
        return condition()

    def fleet_status(self):
        nodes = [{"name": node, "joined": True} for node in NODES]
        return self.answers and {
            "last_event": self.event,
            "deployments": [self.one],
            "nodes": nodes,
            "trouble": "",
            "warnings": [],
            **self.status,
        }

    def run(self, verb):
        return self.verb

    def deployments(self):
        return [self.one]

    def python(self, node, code):
        """Strays of a node, as the program that the nemesis runs there prints them."""
        nothing = {"supervisors": 0, "engines": [], "ports": [], "shared": []}
        return json.dumps(
            nothing | ({"supervisors": self.supervisors, **self.left} if node == "spark1" else {})
        )

    def placement_groups(self):
        return self.placed

    def exec(self, node, argv):
        return self

    @property
    def stdout(self):
        return json.dumps({"events": self.log})

    def fail(self, message):
        """The engine is another one, and an event has the reason."""
        self.one = {**self.one, "groups": [{"ranks": [{"pid": 101, "node": "spark1"}]}]}
        if message:
            self.log = [{"deployment": "pair", "subject": "pair/g1/0", "kind": "failed", "message": message}]


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(soak, "ORPHAN_S", 0.0)
    monkeypatch.setattr(soak.time, "sleep", lambda seconds: None)
    fleet = StubFleet()
    fleet.nemesis = soak.Nemesis(fleet, 1, clocks=None)
    fleet.nemesis._named_at = 5.0
    return fleet


def judged(fleet, fault, change, lasted=20.0):
    before = fleet.nemesis._state()
    change()
    fleet.nemesis._judge(fault, before, lasted)
    return fleet.nemesis.wrong


ENGINE = Fault("process", "engine", "spark1", "KILL")
POWER = Fault("power", "power", "spark2", "off", 20.0)
GATEWAY = Fault("process", "gateway", "spark1", "STOP", 20, ("pair", "alone"))


def test_a_fault_that_cost_nothing_is_well(stub):
    assert judged(stub, GATEWAY, lambda: None) == []


@pytest.mark.parametrize("fault", [ENGINE, POWER])
def test_an_engine_may_be_lost_for_a_reason_and_not_without(stub, fault):
    assert judged(stub, fault, lambda: stub.fail("it exited: signal 9")) == []
    stub.log = []
    stub.one = {**stub.one, "groups": [{"ranks": [{"pid": 100, "node": "spark1"}]}]}
    assert any("no event names the reason" in line for line in judged(stub, fault, lambda: stub.fail("")))


def test_a_fault_that_may_cost_none_is_wrong_even_with_a_reason(stub):
    (wrong,) = judged(stub, GATEWAY, lambda: stub.fail("it exited: signal 9"))
    assert wrong.startswith("gateway on spark1: STOP for 20 s: cost the engine of pair")


def test_lost_state_orphans_and_silence_are_wrong(stub):
    (wrong,) = judged(stub, GATEWAY, lambda: stub.one.update(generation=2))
    assert "the state changed" in wrong
    stub.nemesis.wrong.clear()
    (wrong,) = judged(stub, GATEWAY, lambda: setattr(stub, "supervisors", 2))
    assert "2 supervisors on spark1 for 1 ranks" in wrong
    stub.nemesis.wrong.clear()
    stub.supervisors, stub.placed = 1, ["one", "two"]
    (wrong,) = judged(stub, GATEWAY, lambda: None)
    assert "placement groups" in wrong
    stub.nemesis.wrong.clear()
    stub.placed, stub.nemesis._named_at = ["one"], None
    (wrong,) = judged(stub, GATEWAY, lambda: None)
    assert "neither status nor an event named it within 20 s" in wrong


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        ("engines", "python -m sparkfleet.engines.fake", "an engine without a supervisor on spark1: python"),
        ("ports", "8123 of python -m http.server", "a listening port on spark1: 8123 of python"),
        ("shared", "psm_1", "/dev/shm/psm_1 on spark1, which no process uses"),
    ],
)
def test_what_no_group_reports_is_an_orphan(stub, kind, line, words):
    (wrong,) = judged(stub, GATEWAY, lambda: stub.left.update({kind: [line]}))
    assert words in wrong


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_the_program_of_a_node_finds_what_nobody_holds():
    """It runs here: this test has no supervisor, and beside it others may run."""
    listens = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    argv = [sys.executable, "-c", f"{listens}; time.sleep(60)", "sparkfleet.engines.fake", "of this test"]
    segment = Path(f"/dev/shm/sparkfleet-test-{os.getpid()}")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as engine:
        try:
            port = int(engine.stdout.readline())
            segment.write_text("left")
            found = strays()
            with segment.open():
                assert segment.name not in strays()["shared"], "this process uses it"
        finally:
            engine.kill()
            segment.unlink(missing_ok=True)
    assert any("of this test" in line for line in found["engines"])
    assert any(line.startswith(f"{port} of ") for line in found["ports"])
    assert segment.name in found["shared"]
    again = strays()
    assert not any("of this test" in line for line in again["engines"])
    assert not any(line.startswith(f"{port} of ") for line in again["ports"])


def strays():
    done = subprocess.run([sys.executable, "-c", soak.STRAYS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def stopped(target, node="spark1"):
    return Fault("process", target, node, "STOP", 20.0)


def names(stub, fault, **status):
    """True if a status with these fields, or an event that has come since, names a fault."""
    before = stub.nemesis._state()
    stub.status = status
    return stub.nemesis._is_named(fault, before)


def test_what_status_shows_of_a_fault_counts_as_named(stub):
    node = stopped("node actor", "spark2")
    assert not names(stub, node)
    before = stub.nemesis._state()
    stub.one["detail"] = "spark2 does not answer (for 9 s)"
    assert stub.nemesis._is_named(node, before)
    assert not stub.nemesis._is_named(stopped("watchdog"), before), "something else is shown"
    assert not names(stub, node), "it was there before"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("raylet", "spark1: Ray's raylet is stopped, and nothing new starts here"),
        ("watchdog", "spark1: The Ray watchdog is stopped, and Ray would not be started again here"),
        ("GCS", "The nodes have not been read for 10 s: Ray's GCS on the head does not answer."),
        ("Serve controller", "The list of what runs has not ended for 10 s: Ray Serve does not answer"),
        ("supervisor", "rank 0 on spark1 has not answered for 9 s: its supervisor or its holder hangs"),
        ("rank actor", "rank 1 on spark2 has not answered for 9 s: its supervisor or its holder hangs"),
        ("engine", "the engine's counters have not moved for 9 s: it hangs, or computes a long prompt"),
    ],
)
def test_a_warning_names_the_process_that_it_is_about_and_no_other(stub, target, words):
    assert names(stub, stopped(target), warnings=[words])
    assert not names(stub, stopped("gateway"), warnings=[words])
    assert not names(stub, stopped(target), warnings=["somebody's disk is 91% full"])


def test_an_event_names_a_fault_by_its_kind_or_its_words_and_a_step_of_a_start_does_not(stub):
    before = stub.nemesis._state()
    stub.event = 11
    event = {
        "deployment": "pair",
        "subject": "pair/g1/0",
        "kind": "starting",
        "message": "the group's last actor",
    }
    for kind, named in (("starting", True), ("progress", False)):
        stub.log = [event | {"kind": kind}]
        assert stub.nemesis._is_named(stopped("actor of pair"), before) is named
        assert not stub.nemesis._is_named(STOPPED, before)
    stub.log = [event | {"subject": "jiztt5c8", "kind": "gateway", "message": "gateway listening"}]
    assert stub.nemesis._is_named(STOPPED, before)


def test_without_an_answer_only_a_fault_of_the_controller_is_named(stub):
    before = stub.nemesis._state()
    stub.answers = False
    assert stub.nemesis._is_named(stopped("controller"), before)
    assert not stub.nemesis._is_named(stopped("GCS"), before)
    token = Fault("file", "api.token", "spark1", "unreadable", 20.0)
    for stub.verb in ((5, "", "The token api.token cannot be read."), (0, "api.token cannot be used", "")):
        assert stub.nemesis._is_named(token, before)
    stub.verb = (5, "", "The controller does not answer.")
    assert not stub.nemesis._is_named(token, before)


def test_every_target_has_words_or_a_reason_to_have_none():
    found = faults(1) + faults(1, small="spark2")
    without = {one.target for one in found if not soak.words_of(one)}
    assert without == {"clock", "disk without the store", *COMMANDS}
    assert {soak.words_of(one) for one in faults(1) if one.kind == "file"} == {(name,) for name in FILES}


def test_a_silent_supervisor_is_wrong_and_a_silent_command_is_not(stub):
    stub.nemesis._named_at = None
    (wrong,) = judged(stub, stopped("supervisor"), lambda: None)
    assert "neither status nor an event named it" in wrong
    stub.nemesis.wrong.clear()
    assert judged(stub, Fault("command", "up", "here", "whole"), lambda: None, lasted=40.0) == []
