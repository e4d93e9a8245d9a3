"""The command line is interrupted or killed in every phase of an apply, and applying again leaves nothing double."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest
from lab_fleet import SPARKFLEET
from pair_fleet import NODES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

START_S = 6
"""Loading of the fake engine: long enough to be interrupted."""
ON_TWO = "nodes: [spark2]\n"
"""Its engine starts when its node has joined, so that every phase is long enough."""
STEPS = (
    "fleet ",
    "starting Ray",
    "waiting for nodes",
    "waiting (tiny)",
    "starting the engine (tiny)",
    "first token (tiny)",
)
"""Words of the plan, and of the phases that every such apply shows, in their order."""


class Apply:
    """`sparkfleet apply` on a terminal of its own, where every phase is shown.

    Args:
        fleet: the fleet.
        file: the deployment.
        yes: whether it asks nothing.
    """

    def __init__(self, fleet, file, yes=True):
        self._fleet = fleet
        self.shown = ""
        self._terminal, slave = pty.openpty()
        self._process = subprocess.Popen(
            [SPARKFLEET, "apply", file, *(["--yes"] if yes else [])],
            cwd=fleet.directory,
            env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def until_shown(self, step, timeout=120):
        """Read until a phase is shown, or the command ends."""
        deadline = time.monotonic() + timeout
        while step not in self.shown and self._read():
            assert time.monotonic() < deadline, (
                f"{step!r} was not shown\n{self.shown}\n{self._fleet.diagnosis()}"
            )
        assert step in self.shown, f"it ended without {step!r}\n{self.shown}"

    def type(self, text):
        """Answer its question."""
        os.write(self._terminal, text.encode())

    def end(self, number, timeout=30):
        """Signal it, and return its exit code."""
        self._process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout):
        """Its exit code."""
        deadline = time.monotonic() + timeout
        while self._read():
            assert time.monotonic() < deadline, f"it did not end\n{self.shown}\n{self._fleet.diagnosis()}"
        return self._process.wait(timeout)

    def _read(self):
        """True while there may be more."""
        if select.select([self._terminal], [], [], 1.0)[0]:
            try:
                self.shown += os.read(self._terminal, 65536).decode(errors="replace")
            except OSError:
                return False  # its other end is closed
        return True


@pytest.fixture
def fleet(pair):
    """Two Sparks, down, that have never served `tiny`; up again afterwards, as others expect them."""
    yield pair
    pair.ok("up")


def bring_down(fleet):
    for name in [d["name"] for d in fleet.deployments()]:
        fleet.ok("delete", "--yes", name)
    fleet.ok("down")


def take_key(fleet, text):
    if found := re.search(r"sk-sf-[\w-]+", text):
        fleet.key = found.group()


def require_single(fleet):
    """One watchdog and one Ray on each node, one controller, one gateway, one group with one engine."""
    for node in NODES:
        commands = list(fleet.listed(node).values())

        def count(word, commands=commands):
            return len([one for one in commands if word in one])

        is_head = node == NODES[0]
        found = {
            "watchdogs": count("node_daemon.node_cli keep"),
            "raylets": count("raylet/raylet "),
            "GCS": count("gcs_server "),
            "controllers": count("ray::ControllerActor"),
            "gateways": count("ServeReplica:gateway"),
        }
        assert found == {
            "watchdogs": 1,
            "raylets": 1,
            "GCS": int(is_head),
            "controllers": int(is_head),
            "gateways": int(is_head),
        }, f"{node}: {found}\n" + "\n".join(commands)
    engines = {node: list(fleet.engines(node).values()) for node in NODES}
    assert sum(map(len, engines.values())) == 1, engines
    assert len(fleet.placement_groups()) == 1
    (group,) = fleet.deployment()["groups"]
    assert group["phase"] == "ready"


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS)
def test_an_apply_that_ends_in_a_phase_is_repeated_and_nothing_is_double(fleet, step, number):
    bring_down(fleet)
    file = fleet.write("tiny.yaml", fleet.spec(ON_TWO, start_s=START_S))
    with Apply(fleet, file) as first:
        first.until_shown(step)
        code = first.end(number)
        take_key(fleet, first.shown)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL), first.shown
    take_key(fleet, fleet.ok("apply", "--yes", file))
    fleet.until(fleet.is_ready, timeout=60)
    require_single(fleet)
    assert fleet.is_sound(fleet.chat())


@pytest.mark.full
@pytest.mark.parametrize("step", ["starting Ray", "waiting for nodes", "starting the engine (tiny)"])
def test_down_during_a_start_leaves_nothing_and_the_apply_ends(fleet, step):
    bring_down(fleet)
    file = fleet.write("tiny.yaml", fleet.spec(ON_TWO, start_s=20))
    with Apply(fleet, file) as apply:
        apply.until_shown(step)
        fleet.ok("down")
        assert apply.wait(45) == 1, apply.shown
    assert "down" in apply.shown
    assert {node: fleet.processes(node) for node in NODES} == {node: [] for node in NODES}
    assert {node: fleet.listening(node) for node in NODES} == {node: [] for node in NODES}


def test_a_plan_that_another_apply_overtakes_while_it_is_read_is_refused(pair):
    """The last one used to win, and the first was told "ready" of the second's file."""
    pair.serve(pair.spec(ON_TWO))
    mine = pair.write("mine.yaml", pair.spec(ON_TWO).replace("concurrency: 4", "concurrency: 2"))
    with Apply(pair, mine, yes=False) as first:
        first.until_shown("Apply?")
        pair.serve(pair.spec(ON_TWO).replace("concurrency: 4", "concurrency: 3"))
        theirs = pair.group()["ranks"][0]["pid"]
        first.type("y\n")
        assert first.wait(60) == 1, first.shown
    words = " ".join(first.shown.split())
    assert "tiny was changed after this plan was made" in words
    assert "concurrency: 4 → 3" in words
    assert "is ready" not in words
    assert pair.ready_group()["ranks"][0]["pid"] == theirs
