"""Ray's head is started without the server of Ray Client."""

import pytest
from ray._private.parameter import RayParams
from ray.scripts import scripts

from sparkfleet.controlplane.ray.ray_start import without_ray_client


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    """The function of this process's Ray is put back."""
    monkeypatch.setattr(scripts, "get_ray_client_dependency_error", scripts.get_ray_client_dependency_error)


def port_of_a_head(monkeypatch):
    """The port of Ray Client that `ray start --head` decides on, which starts nothing here."""
    seen = []

    class Stop(Exception):
        """Ends the command."""

    def params(**given):
        seen.append(RayParams(**given).ray_client_server_port)
        raise Stop

    monkeypatch.setattr(scripts.ray._private.parameter, "RayParams", params)
    with pytest.raises(Stop):
        scripts.cli(["start", "--head"], standalone_mode=False)
    return seen[0]


def test_ray_would_start_a_server_of_ray_client(monkeypatch):
    assert port_of_a_head(monkeypatch) == 10001


def test_it_is_left_out(monkeypatch):
    without_ray_client()
    assert port_of_a_head(monkeypatch) is None


def test_a_ray_that_decides_in_another_way_is_not_started(monkeypatch):
    monkeypatch.delattr(scripts, "get_ray_client_dependency_error")
    with pytest.raises(RuntimeError, match="Ray Client"):
        without_ray_client()
