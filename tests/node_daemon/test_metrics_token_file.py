import stat

import pytest

from sparkfleet.node_daemon.metrics_token_file import write_metrics_token
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(tmp_path):
    return FleetPaths(tmp_path / "home")


def test_a_new_file_is_private(paths):
    write_metrics_token(paths, "abc")
    assert paths.metrics_token.read_text() == "abc"
    assert stat.S_IMODE(paths.metrics_token.stat().st_mode) == 0o600


def test_a_container_that_has_the_file_reads_each_later_token(paths):
    """Each start of the head replaced it: after the next rotation Prometheus got 401 of every engine."""
    write_metrics_token(paths, "longer than the next")
    with paths.metrics_token.open() as of_a_container:
        write_metrics_token(paths, "next")
        assert of_a_container.read() == "next"
