"""The fleet that the integration tests share."""

import shutil

import pytest
from live_fleet import TINY, Fleet


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    """A fleet that serves `tiny`. Shared by the tests of a session: each leaves it serving."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.apply(fleet.write("tiny.yaml", TINY))
        yield fleet
    finally:
        code, out, err = fleet.run("down")
        left = fleet.everything()
        shutil.rmtree(fleet.paths.run, ignore_errors=True)
        assert code == 0, f"{out}\n{err}"
        assert left == [], left
