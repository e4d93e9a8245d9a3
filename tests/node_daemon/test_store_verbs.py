"""Verbs on a head's store; `tests/cli/fleet/test_backup.py` has them from the command line."""

import fcntl
import os
from pathlib import Path

import pytest
from control_values import deployment, plan

from sparkfleet.controlplane.api.store_request import StoreRequest
from sparkfleet.controlplane.store_safety.opening import open_store
from sparkfleet.node_daemon.store_verbs import answer
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(paths):
    """A head with a store that has one deployment."""
    store = open_store(paths, "home")
    store.deployments.put(deployment(), plan(), "me")
    store.close()
    return paths


def ask(paths, verb, **more):
    return answer(StoreRequest(fleet="home", state_dir=str(paths.root), verb=verb, **more))


@pytest.mark.parametrize("verb", ["restore", "adopt", "begin_anew", "copy"])
def test_of_two_at_once_one_is_refused_and_changes_nothing(paths, verb):
    """Both wrote the same new file, and an empty store could be put in place."""
    assert "error" not in ask(paths, "copy")
    before = paths.database.read_bytes()
    held = os.open(paths.root / "store.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    refused = ask(paths, verb, name="home" if verb == "begin_anew" else "latest")
    os.close(held)
    assert refused["error"]["what"] == "Another command works on the store of this head."
    assert paths.database.read_bytes() == before


def test_one_after_the_other_is_taken(paths):
    ask(paths, "copy")
    for _ in range(2):
        restored = ask(paths, "restore", name="latest")
        assert restored["deployments"] == ["tiny (generation 1)"]


def test_a_copy_that_was_kept_elsewhere_serves_another_head(paths, tmp_path):
    """The head's disk is where all other copies are: `docs/runbook.md` has the two commands for a head that is lost."""
    made = ask(paths, "copy")
    other = FleetPaths(tmp_path / "another machine" / "home")
    other.backups.mkdir(parents=True)
    (other.backups / "kept.db").write_bytes(Path(made["path"]).read_bytes())
    assert [one["deployments"] for one in ask(other, "list")["copies"]] == [["tiny (generation 1)"]]
    assert ask(other, "restore", name="kept.db")["deployments"] == ["tiny (generation 1)"]
    store = open_store(other, "home")
    assert [*store.deployments.desired()] == ["tiny"]
    store.close()
