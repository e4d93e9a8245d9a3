"""What a node tells of a fleet, without anything of ours installed."""

import json
import socket

import pytest

from sparkfleet.runtime.state_probe import found


@pytest.fixture
def head(tmp_path):
    """The state directory of a head whose Ray would listen at the port of a socket."""
    with socket.socket() as ray:
        ray.bind(("127.0.0.1", 0))
        (tmp_path / "role.json").write_text(json.dumps({"python": "/opt/python"}))
        (tmp_path / "address.json").write_text(json.dumps({"ray": f"127.0.0.1:{ray.getsockname()[1]}"}))
        (tmp_path / "api.token").write_text("secret")
        yield tmp_path, ray


def test_a_node_that_knows_nothing_of_a_fleet(tmp_path):
    assert found(tmp_path / "home") == {}


def test_a_head_tells_whether_its_ray_listens(head):
    root, ray = head
    said = found(root)
    assert (said["python"], said["api_token"], said["ray"]) == ("/opt/python", "secret", False)
    ray.listen()
    assert found(root)["ray"] is True


def test_another_node_than_the_head_has_an_interpreter_only(tmp_path):
    (tmp_path / "role.json").write_text(json.dumps({"python": "/opt/python"}))
    assert found(tmp_path) == {"python": "/opt/python"}
