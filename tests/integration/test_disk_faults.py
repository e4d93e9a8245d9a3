"""Disks that fill up. Two Sparks of a lab, real Ray and SSH, fake engines."""

import time
from contextlib import contextmanager

import pytest
from asking import Asking
from node_faults import HOME, STATE, as_root, fill, free, large_disk, small_disk
from pair_faults import HERE, THERE, pids, running, whole_again
from pair_fleet import events_of

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(900)]
MODELS = f"{HOME}/.cache/sparkfleet/builtin"


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


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
