import pytest
from ray._private import utils as ray_utils

from sparkfleet.controlplane.ray.ray_process import (
    LABEL,
    choose_address,
    ray_argv,
    ray_environment,
    ray_worker_argv,
)
from sparkfleet.controlplane.state.head_address import HeadAddress, read_address
from sparkfleet.fabric.node_addresses import LOOPBACK
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Gateway


@pytest.fixture
def paths(tmp_path):
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    return paths


def test_an_address_is_chosen_once_and_kept(paths):
    assert read_address(paths) is None
    first = choose_address(paths, LOOPBACK, Gateway(port=0))
    assert read_address(paths) == first
    assert choose_address(paths, LOOPBACK, Gateway(port=0)) == first


def test_a_port_that_was_asked_for_is_taken(paths):
    choose_address(paths, LOOPBACK, Gateway(port=0))
    assert choose_address(paths, LOOPBACK, Gateway()).gateway_port == 8000


def test_a_head_has_the_port_and_the_term_of_its_first_start_and_never_a_lower_term(paths):
    first = choose_address(paths, LOOPBACK, Gateway(port=0), term=3, ray_port=20123)
    assert (first.ray, first.term) == (f"{LOOPBACK}:20123", 3)
    assert choose_address(paths, LOOPBACK, Gateway(port=0)) == first
    higher = choose_address(paths, LOOPBACK, Gateway(port=0), term=5, ray_port=20124)
    assert (higher.ray, higher.term) == (first.ray, 5)


def test_the_endpoint_is_something_a_client_can_use():
    address = HeadAddress(
        ray="127.0.0.2:1", api="http://127.0.0.1:2", gateway_host="0.0.0.0", gateway_port=8000
    )
    assert address.endpoint == "http://127.0.0.1:8000/v1"


def test_ray_is_started_on_loopback_with_little_memory(paths):
    argv = ray_argv(paths, choose_address(paths, LOOPBACK, Gateway(port=0)), "spark1")
    assert any(word.startswith("--node-ip-address=127.0.0.") for word in argv)
    assert "--dashboard-host=127.0.0.1" in argv
    assert "--labels=sparkfleet.node=spark1" in argv
    (store,) = [word for word in argv if word.startswith("--object-store-memory=")]
    assert int(store.partition("=")[2]) < 100 << 20


def test_the_head_moves_and_keeps_its_port(paths):
    before = choose_address(paths, LOOPBACK, Gateway(port=0)).ray
    after = choose_address(paths, "192.168.100.10", Gateway(port=0)).ray
    assert after == f"192.168.100.10:{before.partition(':')[2]}"


def test_a_worker_joins_the_head_at_its_own_address(paths):
    argv = ray_worker_argv(paths, "192.168.100.10:6379", "192.168.100.11", "spark2")
    assert "--address=192.168.100.10:6379" in argv
    assert "--node-ip-address=192.168.100.11" in argv
    assert "--labels=sparkfleet.node=spark2" in argv
    assert "--head" not in argv


def test_a_node_with_another_patch_release_of_python_joins_and_one_with_another_minor_does_not(
    paths, monkeypatch
):
    """By itself Ray refuses both: a node with 3.13.5 never joined a head with 3.13.0."""
    for name, value in ray_environment(paths, {}).items():
        if name.startswith("RAY_DEFAULT_"):
            monkeypatch.setenv(name, value)
    ray_version, python = ray_utils.compute_version_info()
    major, minor, patch = python.split(".")[:3]

    def check(head_python):
        known = {"ray_version": ray_version, "python_version": head_python}
        ray_utils.check_version_info(known, "node 10.0.0.2")

    check(f"{major}.{minor}.{patch}9")
    with pytest.raises(RuntimeError, match="Version mismatch"):
        check(f"{major}.{int(minor) + 1}.{patch}")


def test_rays_environment_is_safe_and_not_the_users(paths):
    env = ray_environment(
        paths, {"PATH": "/bin", "RAY_ADDRESS": "somewhere:6379", "RAY_AUTH_MODE": "disabled"}
    )
    assert env["RAY_AUTH_MODE"] == "token"
    assert env["RAY_AUTH_TOKEN_PATH"] == str(paths.ray_token)
    assert env["RAY_memory_monitor_refresh_ms"] == "0"
    assert env["RAY_worker_niceness"] == "0"
    assert env["RAY_enable_metrics_collection"] == "0"
    assert int(env["RAY_max_grpc_message_size"]) == int(env["RAY_agent_max_grpc_message_size"]) == 32 << 20
    assert env["RAY_raylet_liveness_self_check_interval_ms"] == "3000"
    assert env[LABEL] == paths.label
    assert env["PATH"] == "/bin"
    assert "RAY_ADDRESS" not in env
    assert paths.ray_token.read_text() not in str(env)
