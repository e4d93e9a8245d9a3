"""Fixtures of the tests of `node_daemon`."""

import shutil

import pytest

from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(tmp_path):
    """The directories of a head."""
    made = FleetPaths(tmp_path / "home")
    made.create()
    yield made
    shutil.rmtree(made.run, ignore_errors=True)
