"""A store that cannot be read, or that another process works with. Two Sparks of a lab, real Ray and SSH, fake engines."""

import pytest
from node_faults import as_root
from pair_faults import HERE, is_held, pids, running, store_of

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture
def fleet(pair):
    """Two Sparks; each test serves on them what it needs."""
    return pair


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
