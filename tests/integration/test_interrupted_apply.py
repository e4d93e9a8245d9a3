"""The command line is interrupted or killed in every phase of an apply or in a down, and what follows leaves nothing double.

`installing` is in `tests/install/test_environment.py`: its nodes need an environment of their own.
"""

import re
import signal
import time

import pytest
from on_terminal import OnTerminal
from pair_fleet import LINK, NODES

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.timeout(1800)]

START_S = 6
"""Loading of the fake engine: long enough to be interrupted."""
COMPILES = "kernels"
"""Name of a line of vLLM's log, from which the phase is read (stand_ins/python)."""
MODELS = "~/.cache/sparkfleet/builtin"
SLOW_GBIT = 0.02
"""Of each rail: the model's 20 MB take seconds."""
ON_TWO = "nodes: [spark2]\n"
"""Its engine starts when its node has joined, so that every phase is long enough."""
STEPS = (
    "fleet ",
    "starting Ray",
    "waiting for nodes",
    "waiting (tiny)",
    "starting the engine (tiny)",
    "compiling (tiny)",
    "first token (tiny)",
)
"""Words of the plan, and of the phases that every such apply shows, in their order."""
ASKED_TO_END = ("fleet ", "starting Ray", "starting the engine (tiny)")
"""Steps for Ctrl-C: one of each part of the command, by which alone its handling differs: plan, bringing up, watching."""


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


def spec(fleet, step):
    """`tiny` alone, in whose start a phase is long enough to be interrupted."""
    return fleet.spec(ON_TWO, start_s=START_S, says=COMPILES if step.startswith("compiling") else "")


def end_in(fleet, file, step, number):
    """Apply, and end the command in a phase."""
    with OnTerminal(fleet, "apply", "--yes", file) as first:
        first.until_shown(step)
        code = first.end(number)
        take_key(fleet, first.shown)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL), first.shown


def repeat(fleet, file, timeout=60):
    """Apply again, to its end: it serves, and nothing is double."""
    take_key(fleet, fleet.ok("apply", "--yes", file))
    fleet.until(fleet.is_ready, timeout=timeout)
    require_single(fleet)
    assert fleet.is_sound(fleet.chat())


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "number"),
    [*((step, signal.SIGKILL) for step in STEPS), *((step, signal.SIGINT) for step in ASKED_TO_END)],
)
def test_an_apply_that_ends_in_a_phase_is_repeated_and_nothing_is_double(fleet, step, number):
    bring_down(fleet)
    file = fleet.write("tiny.yaml", spec(fleet, step))
    end_in(fleet, file, step, number)
    repeat(fleet, file)


@pytest.fixture
def without_models(fleet):
    """Takes the built-in models of nodes away; afterwards they are there again."""
    taken = []

    def take(*nodes):
        for node in nodes:
            moved = fleet.lab.exec(node, ["sh", "-c", f"mv {MODELS} {MODELS}.kept"])
            assert moved.returncode == 0, moved.stderr
            taken.append(node)

    yield take
    for node in taken:
        fleet.lab.exec(node, ["sh", "-c", f"rm -rf {MODELS} && mv {MODELS}.kept {MODELS}"])


def half_made(fleet, node):
    """Models that are not complete, on a node."""
    return fleet.lab.exec(node, ["sh", "-c", f"ls -A {MODELS} | grep -v lock | grep '^[.]'"]).stdout.split()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_apply_that_ends_while_weights_are_copied_goes_on_where_it_was(fleet, without_models, number):
    bring_down(fleet)
    without_models("spark2")
    file = fleet.write("tiny.yaml", spec(fleet, "staging"))
    fleet.lab.slow(LINK, gbit=SLOW_GBIT)
    try:
        end_in(fleet, file, "staging weights and images", number)
    finally:
        fleet.lab.mend(LINK)
    repeat(fleet, file)
    assert half_made(fleet, "spark2") == []


@pytest.mark.full
def test_an_apply_of_a_built_in_model_that_no_node_has_starts_nothing(fleet, without_models):
    """Each rank would train its own."""
    bring_down(fleet)
    without_models(*NODES)
    code, _, err = fleet.run("apply", "--yes", fleet.write("tiny.yaml", spec(fleet, "staging")))
    assert code == 1
    assert "builtin:tiny is on no node of the fleet" in err
    assert "`python -m sparkfleet.tiny_models build tiny`" in err
    assert {node: fleet.processes(node) for node in NODES} == {node: [] for node in NODES}


@pytest.mark.full
@pytest.mark.parametrize("step", ["starting Ray", "waiting for nodes", "starting the engine (tiny)"])
def test_down_during_a_start_leaves_nothing_and_the_apply_ends(fleet, step):
    bring_down(fleet)
    file = fleet.write("tiny.yaml", fleet.spec(ON_TWO, start_s=20))
    with OnTerminal(fleet, "apply", "--yes", file) as apply:
        apply.until_shown(step)
        fleet.ok("down")
        assert apply.wait(45) == 1, apply.shown
    assert "down" in apply.shown
    assert {node: fleet.processes(node) for node in NODES} == {node: [] for node in NODES}
    assert {node: fleet.listening(node) for node in NODES} == {node: [] for node in NODES}


@pytest.mark.full
def test_a_plan_that_another_apply_overtakes_while_it_is_read_is_refused(pair):
    """The last one used to win, and the first printed "ready" of the second's file."""
    pair.serve(pair.spec(ON_TWO))
    mine = pair.write("mine.yaml", pair.spec(ON_TWO).replace("concurrency: 4", "concurrency: 2"))
    with OnTerminal(pair, "apply", mine) as first:
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


@pytest.mark.full
@pytest.mark.parametrize("after_s", [0.2, 2, 4])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGHUP])
def test_an_up_at_once_after_a_down_that_ended_serves_again(fleet, number, after_s):
    """The controller of a Ray that was half killed still answered: `up` took it for the fleet's."""
    fleet.serve(fleet.spec(ON_TWO))
    with OnTerminal(fleet, "down") as down:
        down.until_shown("stopping")
        time.sleep(after_s)
        code = down.end(number)
    assert code in (0, 130 if number == signal.SIGINT else -number), down.shown
    fleet.ok("up")
    assert not fleet.fleet_status()["trouble"]
    fleet.until(fleet.is_ready, timeout=60)
    require_single(fleet)
    assert fleet.is_sound(fleet.chat())
