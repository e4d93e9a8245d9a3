"""Faults of docs/faults.md that have no other file: real Ray, SSH and disks on two simulated Sparks, fake engines."""

import time
from contextlib import contextmanager

import pytest
import yaml
from asking import Asking
from node_faults import HOME, STATE, Clocks, as_root, fill, free, large_disk, small_disk
from pair_fleet import LINK, LONG_START_S, TINY, events_of

from sparkfleet.controlplane.controller_failures import LIST_LATE_S

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(900)]

HERE, THERE = "nodes: [spark1]\n", "nodes: [spark2]\n"
PAIR = TINY.replace("name: tiny", "name: pair")
TWO = "parallel: {tp: 2}\n"
LAN = "enP7s7"
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
WATCHDOG = "sparkfleet.node_daemon.node_cli keep"
HOUR_S = 3600.0
MODELS = f"{HOME}/.cache/sparkfleet/builtin"


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


def pids(fleet, name="tiny"):
    return [rank["pid"] for rank in fleet.group(name)["ranks"]]


def running(fleet, node, words):
    """Process ids of a node whose command line has these words."""
    return sorted(pid for pid, line in fleet.listed(node).items() if words in line)


def whole_again(fleet, asking, timeout=60):
    """Wait for a whole answer to a question from now on."""
    again = time.time()
    fleet.until(lambda: asking.whole_since(again), timeout=timeout)


# --- processes


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


# --- networks


def test_with_both_rails_down_and_the_lan_up_the_node_is_named_and_the_group_comes_back_once(fleet):
    fleet.serve(fleet.anew(fleet.spec(HERE)))
    fleet.apply(fleet.anew(fleet.spec(TWO, text=PAIR)), "pair.yaml")
    before, alone = pids(fleet, "pair"), pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        fleet.lab.cut(LINK)
        fleet.until(lambda: "spark2 does not answer" in fleet.deployment("pair")["detail"], timeout=15)
        time.sleep(30)
        fleet.lab.mend(LINK)
        fleet.until(lambda: fleet.ready_group("pair"), timeout=300)
        whole_again(fleet, asking)
    assert pids(fleet) == alone, "the group on the head went on"
    assert set(asking.ends) == {"whole"}, asking.answers
    for node, pid in zip(("spark1", "spark2"), pids(fleet, "pair"), strict=True):
        ranks = [one for one, line in fleet.engines(node).items() if " pair " in f"{line} "]
        assert ranks == [pid], f"on {node}; before: {before}"


def test_with_the_lan_down_and_the_rails_up_everything_serves_and_the_node_is_named(fleet):
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        as_root(fleet, "spark2", "ip", "link", "set", LAN, "down")
        try:
            time.sleep(20)
            assert fleet.is_ready()
            code, _, err = fleet.run("plan", fleet.write("other.yaml", fleet.spec(THERE)))
            assert (code, "spark2" in err) == (1, True), err
        finally:
            as_root(fleet, "spark2", "ip", "link", "set", LAN, "up")
        whole_again(fleet, asking)
    assert pids(fleet) == before
    assert set(asking.ends) == {"whole"}, asking.answers
    fleet.until(lambda: fleet.run("plan", str(fleet.directory / "other.yaml"))[0] in (0, 2), timeout=60)


def test_a_missing_identity_file_is_named_and_nothing_changes(fleet):
    fleet.serve(fleet.spec(HERE))
    inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
    for node in inventory["nodes"].values():
        node["identity_file"] = "/nowhere/id_ed25519"
    without = fleet.write("without.yaml", yaml.safe_dump(inventory))
    for verb in (("status",), ("up",), ("apply", "--yes", str(fleet.directory / "deployment.yaml"))):
        code, out, err = fleet.run(*verb, "--inventory", without)
        assert code != 0
        assert "/nowhere/id_ed25519 does not exist" in " ".join(f"{out}{err}".split()), verb
    assert fleet.is_ready()


def test_a_store_without_permissions_is_a_warning_until_it_has_them(fleet):
    fleet.serve(fleet.spec(HERE))
    before = pids(fleet)
    database = store_of(fleet)

    def warnings():
        return fleet.status()["warnings"]

    as_root(fleet, "spark1", "chmod", "0", database)
    try:
        fleet.until(lambda: any(f"chmod 600 {database}" in one for one in warnings()), timeout=15)
        _, out, err = fleet.run("status")
        assert f"chmod 600 {database}" in " ".join(f"{out}{err}".split())
        assert fleet.chat()
    finally:
        as_root(fleet, "spark1", "chmod", "600", database)
    fleet.until(lambda: not warnings(), timeout=15)
    assert pids(fleet) == before


def store_of(fleet):
    """The store's file on the head."""
    name = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())["fleet"]
    return f"{STATE}/{name}/sparkfleet.db"


def is_held(fleet, words):
    """True if `status` has it that the controller waits for its store, for this reason."""
    code, out, err = fleet.run("status")
    return code == 5 and "held" in out and words in " ".join(f"{out}{err}".split())


def test_a_controller_that_starts_on_a_store_that_it_may_not_read_waits_and_is_back_with_it(fleet):
    fleet.serve(fleet.spec(HERE))
    before, database = pids(fleet), store_of(fleet)
    assert fleet.chat()
    as_root(fleet, "spark1", "chmod", "0", database)
    try:
        (controller,) = running(fleet, "spark1", "ray::ControllerActor")
        as_root(fleet, "spark1", "kill", "-9", str(controller))
        fleet.until(lambda: is_held(fleet, f"{database} cannot be used"), timeout=30)
        assert fleet.chat()
    finally:
        as_root(fleet, "spark1", "chmod", "600", database)
    fleet.until(fleet.is_ready, timeout=10)
    assert pids(fleet) == before


def test_of_two_controllers_that_live_at_once_one_acts(fleet):
    """The lock of the state directory is another process's: no controller that starts changes anything meanwhile."""
    fleet.serve(fleet.spec(HERE))
    before, root = pids(fleet), store_of(fleet).rpartition("/")[0]
    assert fleet.chat()
    (controller,) = running(fleet, "spark1", "ray::ControllerActor")
    taken = f"kill -9 {controller}; exec flock --exclusive --wait 10 {root} sleep 30"
    as_root(fleet, "spark1", "sh", "-c", f"({taken}) >/dev/null 2>&1 &")
    fleet.until(lambda: is_held(fleet, "works with the store in"), timeout=25)
    assert fleet.chat()
    fleet.until(fleet.is_ready, timeout=50)
    assert pids(fleet) == before


# --- power


def test_a_node_that_is_rebooted_twice_during_a_start_is_not_taken_down_a_third_time(fleet):
    for other in [one["name"] for one in fleet.deployments()]:
        fleet.ok("delete", "--yes", other)
    spec = fleet.anew(fleet.spec(THERE, start_s=LONG_START_S))
    fleet.apply(spec, "tiny.yaml", options=("--no-wait",))
    for _ in range(2):
        fleet.until(lambda: fleet.engines("spark2"), timeout=180)
        fleet.lab.reboot("spark2")
        fleet.until(lambda: not fleet.engines("spark2"), timeout=30)
    fleet.until(lambda: (fleet.deployment() or {}).get("state") == "failed", timeout=240)
    _, events = events_of(fleet, "tiny")
    words = [one["message"] for one in events if one["kind"] in ("fallback", "failed")]
    assert sum("spark2 went away while it was starting" in one for one in words) == 2, events
    assert "`sparkfleet apply` tries once more" in words[-1]
    time.sleep(10)
    assert fleet.engines("spark2") == {}
    fleet.apply(spec, "tiny.yaml")
    assert fleet.is_ready()


# --- disks


@pytest.fixture
def small(fleet):
    """Puts a small file system in the place of a directory of a node, with what is in there if that is to be kept."""
    mounted = []

    def put(node, place, size, keep=False):
        small_disk(fleet, node, place, size, keep)
        mounted.append((node, place, keep))

    yield put
    for one in mounted:
        large_disk(fleet, *one)
    fleet.ok("up")


@contextmanager
def small_state(fleet, small, node):
    """A fleet that is down, with a small disk for the state directory of a node; at the end with room, and down again."""
    fleet.ok("down")
    small(node, STATE, "64m", keep=True)
    try:
        yield
    finally:
        free(fleet, node, STATE)
        fleet.ok("down")


@pytest.mark.parametrize(("node", "now", "then"), [("spark2", HERE, THERE), ("spark1", THERE, HERE)])
def test_a_disk_that_fills_up_while_weights_are_copied_is_named_and_the_old_one_serves(
    fleet, small, node, now, then
):
    fleet.serve(fleet.spec(now))
    before = pids(fleet)
    small(node, MODELS, "4m")
    code, out, err = fleet.run("apply", "--yes", fleet.write("tiny2.yaml", fleet.spec(then)))
    words = " ".join(f"{out}{err}".split())
    assert code != 0, words
    assert node in words
    assert "No space left" in words or "is full" in words or "free" in words, words
    assert pids(fleet) == before
    assert fleet.is_ready()


def test_a_full_disk_on_the_head_costs_no_engine_and_is_named_until_there_is_room(fleet, small):
    with small_state(fleet, small, "spark1"):
        fleet.ok("up")
        fleet.serve(fleet.anew(fleet.spec(HERE)))
        before = pids(fleet)
        with Asking(fleet, "tiny") as asking:
            fleet.until(lambda: asking.ends["whole"], timeout=60)
            fill(fleet, "spark1", STATE)
            other = fleet.anew(fleet.spec(THERE)).replace("concurrency: 4", "concurrency: 2")
            code, out, err = fleet.run("apply", "--yes", fleet.write("other.yaml", other))
            assert code != 0, out
            assert "full" in f"{out}{err}", f"{out}{err}"
            assert pids(fleet) == before
            free(fleet, "spark1", STATE)
            fleet.until(lambda: fleet.run("plan", str(fleet.directory / "other.yaml"))[0] == 2, timeout=30)
            whole_again(fleet, asking)
        assert set(asking.ends) == {"whole"}, asking.answers
        assert pids(fleet) == before, f"{out}{err}\n{events_of(fleet, 'tiny')[1]}"
        fleet.apply(other, "other.yaml")


def test_an_up_on_a_full_disk_of_the_head_names_it_and_works_once_there_is_room(fleet, small):
    with small_state(fleet, small, "spark1"):
        fill(fleet, "spark1", STATE)
        code, out, err = fleet.run("up")
        words = " ".join(f"{out}{err}".split())
        assert code != 0, words
        assert "No space left" in words or "full" in words, words
        free(fleet, "spark1", STATE)
        fleet.ok("up")
        fleet.serve(fleet.anew(fleet.spec(HERE)))


def test_a_controller_that_starts_on_a_full_disk_waits_or_works_and_changes_nothing_until_there_is_room(
    fleet, small
):
    with small_state(fleet, small, "spark1"):
        fleet.ok("up")
        fleet.serve(fleet.anew(fleet.spec(HERE)))
        before = pids(fleet)
        fill(fleet, "spark1", STATE)
        (controller,) = running(fleet, "spark1", "ray::ControllerActor")
        as_root(fleet, "spark1", "kill", "-9", str(controller))

        def named():
            _, out, err = fleet.run("status")
            return "full" in f"{out}{err}"

        fleet.until(named, timeout=40)
        assert fleet.chat()
        free(fleet, "spark1", STATE)
        fleet.until(lambda: fleet.is_ready() and not named(), timeout=30)
        assert pids(fleet) == before


def test_a_full_disk_of_a_node_ends_nothing_there_and_a_start_waits_for_room(fleet, small):
    with small_state(fleet, small, "spark2"):
        fleet.ok("up")
        fleet.serve(fleet.anew(fleet.spec(THERE)))
        (before,) = pids(fleet)
        with Asking(fleet, "tiny") as asking:
            fleet.until(lambda: asking.ends["whole"], timeout=60)
            fill(fleet, "spark2", STATE)
            time.sleep(20)
            assert pids(fleet) == [before]
            whole_again(fleet, asking)
        assert set(asking.ends) == {"whole"}, asking.answers
        fleet.lab.exec("spark2", ["kill", "-9", str(before)])

        def started_or_named():
            words = fleet.ok("status")
            return (
                (fleet.ready_group() and pids(fleet) != [before])
                or "No space left" in words
                or "is full" in words
            )

        fleet.until(started_or_named, timeout=60)
        free(fleet, "spark2", STATE)
        fleet.until(lambda: fleet.ready_group() and pids(fleet) != [before], timeout=120)


# --- clocks


@pytest.fixture
def clocks(fleet):
    """Clocks of all programs of the fleet, by node."""
    own = (fleet.directory / "inventory.yaml").read_text()
    fleet.ok("down")
    made = Clocks(fleet, ("spark1", "spark2"))
    fleet.ok("up")
    yield made
    fleet.ok("down")
    fleet.write("inventory.yaml", own)
    fleet.ok("up")


def controllers_clock(fleet):
    """The wall clock of the controller, by its newest event."""
    events = events_of(fleet, "tiny")[1]
    return events[-1]["at"]


def test_clocks_that_jump_an_hour_both_ways_end_nothing_and_stop_no_restart(fleet, clocks):
    fleet.serve(fleet.anew(fleet.spec(TWO)))
    before = pids(fleet)
    with Asking(fleet, "tiny") as asking:
        fleet.until(lambda: asking.ends["whole"], timeout=60)
        for seconds in (HOUR_S, -HOUR_S, 0.0):
            for node in ("spark1", "spark2"):
                clocks.jump(node, seconds)
                time.sleep(6)
                assert fleet.is_ready()
        whole_again(fleet, asking)
    assert pids(fleet) == before
    assert set(asking.ends) == {"whole"}, asking.answers
    for seconds in (HOUR_S, -HOUR_S):
        clocks.jump("spark1", seconds)
        old = pids(fleet)
        fleet.lab.exec("spark2", ["kill", "-9", str(old[1])])
        fleet.until(lambda old=old: (now := fleet.ready_group()) and pids(fleet) != old and now, timeout=120)
        assert abs(controllers_clock(fleet) - time.time() - seconds) < 200, "the jump reached the controller"
