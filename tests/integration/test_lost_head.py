"""The head is lost: another node takes its place with the copy that it keeps, and the old one comes back as a node."""

import signal

import pytest
from node_faults import as_root
from on_terminal import OnTerminal
from pair_fleet import LINK, NODES, TINY, fleet_of
from stand_in import faked

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(900)]

LAN = "enP7s7"
ON_1 = faked(f"{TINY}nodes: [spark1]\n")
ON_2 = faked(f"{TINY}nodes: [spark2]\n")
KEPT = faked(f"{TINY}standby: true\n")
MOVES_S = 330
"""A node counts as lost for good 180 s after the new controller has looked first; a start."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks."""
    with fleet_of(2, tmp_path_factory.mktemp("lost")) as found:
        yield found
        found.clear()
        found.end()


def joined(fleet):
    return {node["name"] for node in fleet.status()["nodes"] if node["joined"]}


def nodes_of(fleet):
    """Nodes of the ranks that its one group reports; none before its first report."""
    (one,) = fleet.deployments()
    return [rank["node"] for group in one["groups"] for rank in group["ranks"]]


def controllers(fleet, node):
    return [line for line in fleet.listed(node).values() if "ray::ControllerActor" in line]


def head_back(fleet):
    """Moves the head to the first Spark, as the next test finds it."""
    fleet.ok("move-head", "spark1", "--yes")
    fleet.until(lambda: fleet.is_ready() and joined(fleet) == set(NODES), timeout=120)


def serve_and_keep(fleet, spec):
    """Applies a deployment, and waits until the other Spark has a copy of the store with it."""
    fleet.apply(spec)
    fleet.until(lambda: "Kept on spark2: the newest" in fleet.ok("restore"), timeout=30)


def test_another_node_takes_the_place_of_a_lost_head_which_comes_back_as_an_ordinary_node(fleet):
    serve_and_keep(fleet, ON_2)
    (before,) = fleet.engines("spark2")
    refused = fleet.run("move-head", "spark2", "--lost", "--yes")
    assert refused[0] != 0
    assert "spark1 is not lost: it can be reached" in refused[1] + refused[2]

    fleet.lab.kill("spark1")
    code, out, err = fleet.run("status")
    assert code != 0
    assert "If it is lost: `sparkfleet move-head spark2 --lost`." in " ".join((out + err).split())
    out = fleet.ok("move-head", "spark2", "--lost", "--yes")
    assert "spark2 is the head of fleet" in out
    assert "it joins as an ordinary node" in out
    assert fleet.head == "spark2"
    fleet.until(fleet.is_ready, timeout=60)
    assert before in fleet.engines("spark2"), "its engine went on"
    assert fleet.chat().strip()
    assert joined(fleet) == {"spark2"}

    fleet.lab.boot("spark1")
    fleet.until(lambda: joined(fleet) == set(NODES), timeout=120)
    fleet.until(lambda: not controllers(fleet, "spark1"), timeout=30)
    assert len(controllers(fleet, "spark2")) == 1
    assert fleet.chat().strip()
    assert before in fleet.engines("spark2")
    head_back(fleet)


def test_a_head_that_is_only_cut_off_gives_way_when_it_reaches_the_newer_one(fleet):
    """Both serve until then: nobody can know of a node that is not reached that it does not work."""
    serve_and_keep(fleet, ON_2)
    (before,) = fleet.engines("spark2")
    as_root(fleet, "spark1", "ip", "link", "set", LAN, "down")
    try:
        code, out, err = fleet.run("move-head", "spark2", "--lost", "--yes")
        assert code != 0
        assert "spark1 is not lost: spark2 reaches its Ray" in " ".join((out + err).split())
        fleet.lab.cut(LINK)
        fleet.ok("move-head", "spark2", "--lost", "--yes")
        assert fleet.head == "spark2"
        fleet.until(fleet.is_ready, timeout=60)
        assert before in fleet.engines("spark2")
        assert fleet.chat().strip()
        assert controllers(fleet, "spark1"), "it cannot know"
    finally:
        fleet.lab.mend(LINK)
        as_root(fleet, "spark1", "ip", "link", "set", LAN, "up")
    fleet.until(lambda: joined(fleet) == set(NODES) and not controllers(fleet, "spark1"), timeout=120)
    assert fleet.chat().strip()
    assert before in fleet.engines("spark2")
    head_back(fleet)


def test_a_replacement_whose_command_is_killed_is_repeated(fleet):
    serve_and_keep(fleet, ON_2)
    fleet.lab.kill("spark1")
    with OnTerminal(fleet, "move-head", "spark2", "--lost", "--yes") as moving:
        moving.until_shown("starting Ray")
        moving.end(signal.SIGKILL)
    assert fleet.head == "spark1"
    assert "it joins as an ordinary node" in fleet.ok("move-head", "spark2", "--lost", "--yes")
    assert fleet.head == "spark2"
    fleet.until(fleet.is_ready, timeout=120)
    assert fleet.chat().strip()
    fleet.lab.boot("spark1")
    fleet.until(lambda: joined(fleet) == set(NODES), timeout=120)
    assert len(controllers(fleet, "spark2")) == 1
    head_back(fleet)


def test_a_group_of_the_lost_head_goes_on_with_the_node_that_was_kept_for_it(fleet):
    for one in fleet.deployments():
        fleet.ok("delete", "--yes", one["name"])
    planned = fleet.run("plan", fleet.write("plan.yaml", KEPT))[1]
    assert "without spark1, the head: rung 2, spark2" in planned
    assert "`sparkfleet move-head spark2 --lost`" in planned
    serve_and_keep(fleet, KEPT)
    assert nodes_of(fleet) == ["spark1"]

    fleet.lab.kill("spark1")
    fleet.ok("move-head", "spark2", "--lost", "--yes")
    fleet.until(lambda: nodes_of(fleet) == ["spark2"] and fleet.is_ready(), timeout=MOVES_S)
    assert fleet.chat().strip()

    fleet.lab.boot("spark1")
    fleet.until(lambda: joined(fleet) == set(NODES), timeout=120)
    head_back(fleet)


def test_what_the_lost_head_ran_moves_at_once_if_its_owner_drains_it(fleet):
    for one in fleet.deployments():
        fleet.ok("delete", "--yes", one["name"])
    serve_and_keep(fleet, KEPT)
    assert nodes_of(fleet) == ["spark1"]

    fleet.lab.kill("spark1")
    out = fleet.ok("move-head", "spark2", "--lost", "--yes")
    assert "`sparkfleet drain spark1` moves at once" in " ".join(out.split())
    fleet.ok("drain", "spark1", "--yes")
    assert nodes_of(fleet) == ["spark2"]
    assert fleet.chat().strip()

    fleet.lab.boot("spark1")
    fleet.until(lambda: joined(fleet) == set(NODES), timeout=120)
    assert nodes_of(fleet) == ["spark2"]
    fleet.ok("undrain", "spark1")
    head_back(fleet)


@pytest.mark.parametrize("ends", ["by-itself", "cancelled"])
def test_a_move_whose_new_head_dies_is_undone_and_the_old_one_serves(fleet, ends):
    """The old head waited for ever: `--cancel` asked the dead one first, and ended with its error."""
    for one in fleet.deployments():
        fleet.ok("delete", "--yes", one["name"])
    fleet.serve(fleet.anew(ON_1))
    (before,) = fleet.engines("spark1")
    with OnTerminal(fleet, "move-head", "spark2", "--yes") as moving:
        moving.until_shown("starting Ray")
        if ends == "cancelled":
            moving.end(signal.SIGKILL)
            fleet.until(lambda: marked(fleet, "spark2"), timeout=30)
        fleet.lab.kill("spark2")
        if ends == "by-itself":
            assert moving.wait(300) != 0, "it waits for 180 s for the start of the new head"
            shown = " ".join(moving.shown.split())
            assert "The move was undone: the head is spark1, as before, and groups went on." in shown
            assert "spark2 was not reached. It has not taken over" in shown
        else:
            assert fleet.run("status")[0] == 5
            out = " ".join(fleet.ok("move-head", "spark2", "--cancel").split())
            assert "spark1 is the head, as before. spark2 was not reached. It has not taken over" in out
    assert fleet.head == "spark1"
    fleet.until(fleet.is_ready, timeout=60)
    assert before in fleet.engines("spark1"), "its engine went on"
    assert fleet.chat().strip()

    fleet.lab.boot("spark2")
    fleet.until(lambda: joined(fleet) == set(NODES), timeout=120)
    fleet.until(lambda: not marked(fleet, "spark2"), timeout=30)
    assert not controllers(fleet, "spark2")
    assert len(controllers(fleet, "spark1")) == 1
    assert fleet.chat().strip()


def marked(fleet, node):
    """True if a move of the head to this node is under way there."""
    found = fleet.lab.exec(node, ["sh", "-c", "cat ~/.local/state/sparkfleet/*/role.next.json"])
    return found.returncode == 0
