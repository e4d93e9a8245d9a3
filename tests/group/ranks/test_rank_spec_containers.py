"""Command of a rank in a container, and its container tool."""

import sys

import pytest
from launches import FLEET, desired, launches_for

from sparkfleet.engines.base import FILES_IN_CONTAINER
from sparkfleet.errors import Cause, NodeError
from sparkfleet.group.ranks.rank_node import spec_here
from sparkfleet.group.ranks.rank_spec import Ports
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.runtime.base import ContainerSpec
from sparkfleet.runtime.files.fleet_paths import FleetPaths

IMAGE = f"localhost/x@sha256:{'0' * 64}"
CONTAINER = ContainerSpec(tool="podman", image="localhost/sparkfleet-staged:x")
ALONE = GroupShape(nodes=("a",))
PAIR = GroupShape(nodes=("a", "b"), tp=2)


@pytest.fixture
def spec(tmp_path):
    """spec(shape, rank=0, **fields of the candidate): of a rank in a container."""

    def make(shape=ALONE, rank=0, **fields):
        told = {"runtime": "container", "image": IMAGE, **fields}
        (launch,) = launches_for(FLEET, desired(shape, **told))
        ports = Ports(http=4000, rendezvous=5000)
        return spec_here(FleetPaths(tmp_path / "home"), launch, rank, ports, "secret", container=CONTAINER)

    return make


def values(argv, flag):
    return [argv[at + 1] for at, word in enumerate(argv) if word == flag]


def program(argv):
    """The program in the container, without the shell that opens its files to the node's user."""
    return argv[argv.index('umask 0; exec "$@"') + 2 :]


def test_the_tool_runs_it_by_the_name_that_the_image_has_here(spec):
    rank = spec()
    assert rank.argv[:2] == ("podman", "run")
    assert rank.container == CONTAINER
    assert program(rank.argv)[:3] == ("sh", f"{FILES_IN_CONTAINER}/start.sh", "python3")


def test_what_the_deployment_sets_is_told_to_the_tool_by_name_only(spec):
    rank = spec(env=(("HF_TOKEN", "hf_secret"), ("LD_LIBRARY_PATH", "/inside")))
    given = values(rank.argv, "--env")
    assert "HF_TOKEN" in given
    assert dict(rank.secret_env)["HF_TOKEN"] == "hf_secret"
    assert "hf_secret" not in " ".join(rank.argv)
    assert "LD_LIBRARY_PATH=/inside" in given, "in the tool's own environment it would steer the tool"
    assert "LD_LIBRARY_PATH" not in dict(rank.secret_env)
    assert set(dict(rank.secret_env)) <= set(given)


def test_what_is_embedded_is_made_by_the_node_and_not_by_the_image(spec):
    assert spec(python="/inside/only").prepare[:4] == (sys.executable, "-P", "-m", "sparkfleet.tiny_models")


def test_on_cpus_ranks_have_no_gpu_and_no_rdma(spec):
    rank = spec(PAIR, 1)
    assert values(rank.argv, "--device") == []
    assert values(rank.argv, "--cap-add") == ["DAC_OVERRIDE"]
    assert [word for word in values(rank.argv, "--volume") if word.endswith(f":{FILES_IN_CONTAINER}:ro")]
    assert f"{FILES_IN_CONTAINER}/start.sh" in rank.argv
    assert rank.files, "what vLLM's CPU build lacks"


def test_on_gpus_a_group_has_both(spec):
    rank = spec(PAIR, 1, device="cuda")
    assert values(rank.argv, "--device") == ["nvidia.com/gpu=all", "/dev/infiniband"]
    assert values(rank.argv, "--cap-add") == ["DAC_OVERRIDE", "IPC_LOCK"]


def test_an_image_that_came_from_another_node_keeps_its_entrypoint_replaced(spec):
    """Its name on this node decides nothing; its name in the plan does."""
    argv = spec(image=f"vllm/vllm-openai:v0.32.0@sha256:{'0' * 64}", device="cuda").argv
    at = argv.index("--entrypoint")
    assert argv[at + 1 : at + 3] == ("sh", CONTAINER.image)
    assert program(argv)[:3] == ("sh", f"{FILES_IN_CONTAINER}/start.sh", "vllm")


def test_a_container_sees_its_own_checkpoint_and_not_the_whole_cache(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--m" / "snapshots" / ("c" * 40)
    (tmp_path / "models--org--m" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--m" / "refs" / "main").write_text("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--other").mkdir()
    seen = [word.partition(":")[0] for word in values(spec(model="org/m").argv, "--volume")]
    assert str(tmp_path / "models--org--m") in seen
    assert str(tmp_path) not in seen


def test_a_directory_that_is_gone_is_not_mounted(spec, tmp_path):
    """Docker made it anew, empty and root's, and the engine looked for the checkpoint's files in it."""
    models = tmp_path / "disk" / "m"
    with pytest.raises(NodeError, match=rf"a: {models} is missing") as caught:
        spec(model=str(models))
    assert caught.value.because is Cause.MISSING
    models.mkdir(parents=True)
    with pytest.raises(NodeError, match="is empty"):
        spec(model=str(models))
    (models / "config.json").write_text("{}")
    assert f"{models}:{models}:ro" in values(spec(model=str(models)).argv, "--volume")


def test_a_file_and_a_directory_that_only_docker_may_read_are_mounted(spec, tmp_path, monkeypatch):
    """A model may be one file."""
    file = tmp_path / "m.bin"
    file.touch()
    assert f"{file}:{file}:ro" in values(spec(model=str(file)).argv, "--volume")

    def refused(path):
        raise PermissionError(path)

    monkeypatch.setattr("os.listdir", refused)
    assert f"{tmp_path}:{tmp_path}:ro" in values(spec(model=str(tmp_path)).argv, "--volume")


def test_what_one_image_compiles_no_other_deployment_or_image_runs(spec):
    """The writable directory of compiled code."""

    def cache(**fields):
        (found,) = [word for word in values(spec(**fields).argv, "--volume") if word.endswith(":rw")]
        return found

    assert cache() == cache()
    assert cache() != cache(image=f"localhost/x@sha256:{'1' * 64}")
    assert "/kernels/tiny/" in cache()
