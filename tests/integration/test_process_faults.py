"""Processes that are stopped or killed. Two Sparks of a lab, real Ray and SSH, fake engines."""

import time

import pytest
from asking import Asking
from node_faults import as_root
from pair_faults import HERE, THERE, TWO, pids, running, whole_again
from pair_fleet import events_of

from sparkfleet.controlplane.controller_failures import LIST_LATE_S

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(900)]
STOPPED_S = 45
"""Seconds for which a process is stopped: less than the 55 s after which Ray calls a node dead."""
GIVEN_UP_S = 58
"""Seconds after which Ray has called a stopped raylet's node dead."""
STOPPED = (
    ("raylet/raylet ", "spark2"),
    ("raylet/raylet ", "spark1"),
    ("gcs_server", "spark1"),
    ("ray::ControllerActor", "spark1"),
    ("sparkfleet.runtime.supervisor", "spark2"),
)
"""Words of command lines, each with its node."""
STARTS_S = 8
"""Seconds from an apply to the first report of its group; two processors may be busy."""
WATCHDOG = "sparkfleet.node_daemon.node_cli keep"


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


@pytest.mark.parametrize(("words", "node"), STOPPED)
def test_a_process_that_is_stopped_for_45_s_costs_no_engine(fleet, words, node):
    fleet.serve(fleet.anew(fleet.spec(THERE)))
    before = pids(fleet)
    pid = min(pid for pid, line in fleet.listed(node).items() if words in line and "hang_guard" not in line)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.exec(node, ["kill", "-STOP", str(pid)])
        until = time.time() + STOPPED_S
        if words == "gcs_server":
            fleet.until(
                lambda: "GCS on the head does not answer" in str(fleet.fleet_status()["warnings"]), 15
            )
        time.sleep(max(0.0, until - time.time()))
        fleet.lab.exec(node, ["kill", "-CONT", str(pid)])
        whole_again(fleet, asking)
    fleet.until(fleet.is_ready, timeout=120)
    assert pids(fleet) == before
    assert not asking.dishonest, asking.dishonest


def test_a_ray_serve_that_hangs_is_named_and_the_command_named_with_it_ends_that(fleet):
    fleet.serve(fleet.anew(fleet.spec(THERE)))
    before = pids(fleet)
    (serve,) = [
        pid for pid, line in fleet.listed("spark1").items() if line.startswith("ray::ServeController")
    ]
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.exec("spark1", ["kill", "-STOP", str(serve)])
        trouble = fleet.until(lambda: fleet.status()["trouble"], timeout=LIST_LATE_S + 15)
        command = f"kill -9 {serve}"
        assert f"`{command}`" in trouble
        as_root(fleet, "spark1", *command.split())
        fleet.until(lambda: not fleet.status()["trouble"], timeout=60)
        whole_again(fleet, asking)
    fleet.until(fleet.is_ready, timeout=120)
    assert pids(fleet) == before
    assert set(asking.ends) == {"whole"}, asking.answers
    fleet.serve(fleet.anew(fleet.spec(HERE)))  # Ray Serve starts groups again


def test_an_actor_that_is_killed_beside_a_stopped_supervisor_costs_no_engine(fleet):
    """Each attempt to adopt it counted as a failed start: after three the ladder took over, beside an engine that served."""
    fleet.serve(fleet.anew(fleet.spec(THERE)))
    before, group = pids(fleet), fleet.ready_group()
    supervisor = fleet.lab.exec(
        "spark2", ["ps", "-o", "ppid=", "-p", str(group["ranks"][0]["pid"])]
    ).stdout.strip()
    own = f"ray::ServeReplica:tiny--g{group['generation']}-"  # an older one may still be ending
    # A fork of the actor has its name until it runs its program, and a lower number if those of processes began anew.
    actors = [pid for pid, line in fleet.listed("spark2").items() if own in line and "hang_guard" not in line]
    fleet.lab.exec("spark2", ["kill", "-STOP", supervisor])
    fleet.lab.exec("spark2", ["kill", "-KILL", *map(str, actors)])
    time.sleep(STOPPED_S)
    fleet.lab.exec("spark2", ["kill", "-CONT", supervisor])
    fleet.until(fleet.is_ready, timeout=120)
    assert pids(fleet) == before
    assert fleet.group()["adopted"]


def test_a_rank_actor_that_is_killed_under_load_costs_no_engine(fleet):
    """The group's actor stopped all ranks for the death of a process that only held one of them."""
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        actors = running(fleet, "spark2", "ray::RankActor")  # an older generation's may still be ending
        assert actors
        fleet.lab.exec("spark2", ["kill", "-KILL", *map(str, actors)])
        fleet.until(lambda: (now := fleet.ready_group()) and now["adopted"], timeout=120)
        whole_again(fleet, asking)
    assert pids(fleet) == before
    assert not asking.dishonest, asking.dishonest
    for node, pid in zip(("spark1", "spark2"), before, strict=True):
        assert pid in fleet.engines(node)
    _, events = events_of(fleet, "tiny")
    assert any("the engine generates on all ranks and runs on" in one["message"] for one in events), events
    assert not [one for one in events if one["kind"] in ("failed", "lost")], events


@pytest.mark.parametrize("node", ["spark1", "spark2"])
def test_a_watchdog_that_is_killed_is_named_and_started_again_beside_its_ray(fleet, node):
    """It was away until the next reboot: a later end of Ray was the end of the fleet."""
    fleet.serve(fleet.anew(fleet.spec(THERE)))
    before = pids(fleet)
    (watchdog,), raylets = running(fleet, node, WATCHDOG), running(fleet, node, "raylet/raylet ")
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.exec(node, ["kill", "-KILL", str(watchdog)])
        fleet.until(
            lambda: f"{node}: The Ray watchdog does not run here" in str(fleet.fleet_status()["warnings"]), 20
        )
        fleet.until(lambda: running(fleet, node, WATCHDOG), timeout=60)
        fleet.until(lambda: not fleet.fleet_status()["warnings"], timeout=30)
        whole_again(fleet, asking)
    assert (running(fleet, node, "raylet/raylet "), pids(fleet)) == (raylets, before)
    assert set(asking.ends) == {"whole"}, asking.answers
    assert "The Ray watchdog does not run here" in fleet.ok("events")
    fleet.lab.exec(node, ["kill", "-KILL", str(min(raylets))])
    fleet.until(lambda: running(fleet, node, "raylet/raylet ") not in ([], raylets), timeout=120)
    fleet.until(fleet.is_ready, timeout=120)
    assert pids(fleet) == before


def test_up_writes_a_role_that_is_gone_again_and_ends_nothing(fleet):
    """`status` named the command, and it found the fleet up and did nothing."""
    fleet.serve(fleet.anew(fleet.spec(THERE)))
    before = pids(fleet)
    rays = {node: running(fleet, node, "raylet/raylet ") for node in ("spark1", "spark2")}
    for node in rays:
        fleet.lab.exec(node, ["sh", "-c", "rm ~/.local/state/sparkfleet/*/role.json"])
    fleet.until(lambda: str(fleet.fleet_status()["warnings"]).count("role.json") == 2, timeout=30)
    fleet.ok("up")
    fleet.until(lambda: not fleet.fleet_status()["warnings"], timeout=30)
    assert rays == {node: running(fleet, node, "raylet/raylet ") for node in rays}
    assert pids(fleet) == before


def test_a_raylet_that_ray_gives_up_costs_a_group_over_two_nodes_its_engine_and_an_event_names_it(fleet):
    """The group's actor saw its rank's holder go while the controller was away with Ray's head, and nobody named the end."""
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    before = pids(fleet)
    raylet = min(running(fleet, "spark1", "raylet/raylet "))
    fleet.lab.exec("spark1", ["kill", "-STOP", str(raylet)])
    time.sleep(GIVEN_UP_S)
    fleet.lab.exec("spark1", ["kill", "-CONT", str(raylet)])
    fleet.until(lambda: running(fleet, "spark1", "raylet/raylet ") not in ([], [raylet]), timeout=60)
    fleet.until(fleet.is_ready, timeout=120)
    named = [
        one for one in events_of(fleet, "tiny")[1] if one["kind"] in ("failed", "lost") and one["message"]
    ]
    print(named)
    assert pids(fleet) == before or named


def test_a_node_that_does_not_answer_delays_no_start_on_another(fleet):
    """Each start waited 10 s for it, and no round followed meanwhile."""
    fleet.serve(fleet.anew(fleet.spec(HERE)))
    fleet.ok("delete", "--yes", "tiny")
    stopped = [*running(fleet, "spark2", "raylet/raylet "), *running(fleet, "spark2", "ray::NodeAgent")]
    assert len(stopped) >= 2, "a raylet, and the actor by which the controller reads the node"
    words = [str(pid) for pid in stopped]
    fleet.lab.exec("spark2", ["kill", "-STOP", *words])
    try:
        fleet.until(lambda: any(node["silent_s"] for node in fleet.fleet_status()["nodes"]), timeout=30)
        fleet.apply(fleet.anew(fleet.spec(HERE)), options=("--no-wait",))
        fleet.until(fleet.is_ready, timeout=30)
        assert any(node["silent_s"] for node in fleet.fleet_status()["nodes"]), "Ray lists it as alive still"
    finally:
        fleet.lab.exec("spark2", ["kill", "-CONT", *words])
    at = {one["kind"]: one["at"] for one in reversed(events_of(fleet, "tiny")[1])}
    print(at)
    assert at["starting"] - at["wanted"] < STARTS_S
