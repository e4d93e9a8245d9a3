"""Fixtures of the tests of the store's safety."""

import shutil

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(tmp_path):
    """The directories of fleet `home` on its head."""
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    yield paths
    shutil.rmtree(paths.run, ignore_errors=True)


@pytest.fixture
def used(paths):
    """The same, with a store that has generation 2 of `tiny`, and is closed."""
    store = open_store(paths, "home")
    store.deployments.put(deployment(), plan(), "me")
    store.deployments.put(deployment(), plan(concurrency=8), "me")
    store.close()
    return paths
