import json
import subprocess

import pytest

from sparkfleet.engines.base import LaunchFile, Mount, RankCommand
from sparkfleet.engines.container import (
    ContainerOptions,
    RankLabels,
    find_argv,
    parse_containers,
    run_argv,
    stop_argv,
)
from sparkfleet.errors import EngineError

IMAGE = "nvcr.io/nvidia/vllm@sha256:" + "0" * 64
WHO = RankLabels(fleet="home-1", deployment="m", generation=3, group=0, rank=1)
COMMAND = RankCommand(
    argv=("vllm", "serve", "/m", "--port", "4321"),
    env=(("A", "1"), ("HF_TOKEN", "hf_secret")),
    token_env="VLLM_API_KEY",
    mounts=(Mount(source="/hub/m", target="/m"),),
)


def argv(command=COMMAND, **fields):
    return run_argv(command, ContainerOptions(**{"tool": "docker", "image": IMAGE, "labels": WHO, **fields}))


def test_word_for_word():
    assert argv(rdma=True, private=("HF_TOKEN",)) == (
        "docker", "run", "--rm", "--pull=never", "--log-driver=none",
        "--name", "sparkfleet-home-1-m-g3-0-1",
        "--label", "sparkfleet.fleet=home-1",
        "--label", "sparkfleet.deployment=m",
        "--label", "sparkfleet.generation=3",
        "--label", "sparkfleet.group=0",
        "--label", "sparkfleet.rank=1",
        "--label", "sparkfleet.spec=1",
        "--network", "host", "--shm-size", "16g",
        "--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE", "--cap-add", "IPC_LOCK",
        "--security-opt", "no-new-privileges",
        "--pids-limit", "16384",
        "--gpus", "all",
        "--ulimit", "memlock=-1:-1", "--ulimit", "stack=67108864:67108864",
        "--device", "/dev/infiniband",
        "--volume", "/hub/m:/m:ro",
        "--env", "A=1", "--env", "HF_TOKEN", "--env", "VLLM_API_KEY",
        IMAGE, "vllm", "serve", "/m", "--port", "4321",
    )  # fmt: skip


def test_podman_differs_in_the_gpu_and_in_its_own_limit_of_processes():
    docker, podman = argv(), argv(tool="podman")
    at, pids = docker.index("--gpus"), docker.index("--pids-limit")
    assert pids + 2 == at
    assert podman == ("podman", *docker[1:pids], "--device", "nvidia.com/gpu=all", *docker[at + 2 :])


def test_without_a_gpu_no_limit_is_touched():
    plain = argv(gpu=False)
    assert not {"--gpus", "--device", "--ulimit"} & set(plain)


def capabilities(words):
    return {words[at + 1] for at, word in enumerate(words) if word == "--cap-add"}


def test_root_in_a_container_has_the_capabilities_of_its_engine_alone():
    for words in (argv(), argv(gpu=False), argv(tool="podman")):
        assert words[words.index("--cap-drop") + 1] == "ALL"
        assert capabilities(words) == {"DAC_OVERRIDE"}
    sshd = {"CHOWN", "FOWNER", "SETGID", "SETUID", "SYS_CHROOT"}
    assert capabilities(argv(logs_in=True)) == {"DAC_OVERRIDE", *sshd}


def test_the_root_of_an_image_whose_start_writes_nothing_is_read_only():
    ours = argv(image="vllm/vllm-openai:v0.32.0@sha256:0")
    assert "--read-only" in ours
    assert "HOME=/tmp" in ours
    assert [word.partition(":")[0] for word in ours if ":rw,exec,nosuid,nodev" in word] == [
        "/tmp",
        "/run",
        "/var/tmp",
    ]
    assert "--read-only" not in argv(), "NVIDIA's entrypoint links libraries in the image"


@pytest.mark.parametrize("tool", ["docker", "podman"])
@pytest.mark.parametrize("rdma", [False, True])
def test_an_engine_that_reads_by_io_uring_may(tool, rdma):
    words = argv(image="sha256:1", origin="eugr/spark-vllm-b12x:latest", tool=tool, rdma=rdma)
    at = words.index("seccomp=unconfined")
    assert words[at - 3 : at] == ("--security-opt", "no-new-privileges", "--security-opt")
    assert words[words.index("--cap-drop") + 1] == "ALL"
    for other in ("eugr/spark-vllm:latest", "vllm/vllm-openai:v0.32.0", IMAGE):
        assert "seccomp=unconfined" not in argv(image="sha256:1", origin=other, tool=tool, rdma=rdma)


@pytest.mark.parametrize("word", ["--privileged", "--memory", "--restart", "--ipc", "--detach"])
def test_flags_that_are_never_used(word):
    assert word not in argv(rdma=True)


def test_secrets_are_named_only():
    assert not any("hf_secret" in word for word in argv(private=("HF_TOKEN",)))


def test_an_engine_that_is_the_entrypoint_is_replaced():
    words = argv(image="docker.io/vllm/vllm-openai:v0.27.1@sha256:0")
    at = words.index("--entrypoint")
    assert words[at : at + 4] == (
        "--entrypoint",
        "vllm",
        "docker.io/vllm/vllm-openai:v0.27.1@sha256:0",
        "serve",
    )


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/vllm:26.08-py3", "host:5000/vllm/vllm-openai:v1", "sha256:0"]
)
def test_other_entrypoints_stay(image):
    assert "--entrypoint" not in argv(image=image)


def test_the_entrypoint_of_an_image_is_kept():
    assert argv(COMMAND.model_copy(update={"argv": ()}))[-1] == IMAGE


WRITING = (Mount(source="/state/kernels", target="/state/kernels", read_only=False),)


@pytest.mark.parametrize(("image", "origin"), [(IMAGE, ""), ("sha256:0", "vllm/vllm-openai:v0.27.1")])
def test_what_an_engine_writes_on_the_node_can_be_removed_by_the_nodes_user(tmp_path, image, origin):
    """Docker's root makes directories of its own: with the usual umask nobody but root could remove anything in them."""
    command = COMMAND.model_copy(update={"argv": ("mkdir", str(tmp_path / "made")), "mounts": WRITING})
    words = argv(command, image=image, origin=origin)
    at = words.index(image)
    entrypoint = words[words.index("--entrypoint") + 1 : at] if origin else ()
    subprocess.run([*entrypoint, *words[at + 1 :]], check=True, umask=0o022)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o777


def test_sshd_and_what_writes_nothing_there_keep_their_umask():
    writing = COMMAND.model_copy(update={"mounts": WRITING})
    assert argv(writing, logs_in=True)[-5:] == COMMAND.argv
    assert "umask 0" not in " ".join(argv())
    assert argv(writing.model_copy(update={"argv": ()}))[-1] == IMAGE


def test_files_are_mounted_at_one_place():
    command = COMMAND.model_copy(update={"files": (LaunchFile(name="o.yaml", text=""),)})
    assert "/state/r:/run/sparkfleet:ro" in argv(command, files_dir="/state/r")
    with pytest.raises(EngineError, match="no directory"):
        argv(command)


def test_the_former_release_finds_the_container_after_an_upgrade_that_goes_back():
    """It reads this label and skips containers without it."""
    assert any(word.startswith("sparkfleet.spec=") for word in argv())


def test_stopping_and_finding():
    assert stop_argv("podman", "x", 30.4) == ("podman", "stop", "-t", "30", "x")
    assert find_argv("docker", "home-1")[-4:] == (
        "--filter", "label=sparkfleet.fleet=home-1", "--format", "{{json .}}"
    )  # fmt: skip


OURS = {"fleet": "home-1", "deployment": "m", "generation": "3", "group": "0", "rank": "1"}


def listed(tool, labels, **fields):
    labels = {f"sparkfleet.{name}": value for name, value in labels.items()} | {"maintainer": "x"}
    if tool == "docker":
        told = {"Names": "n", "Labels": ",".join(f"{k}={v}" for k, v in labels.items()), "State": "running"}
    else:
        told = {"Names": ["n"], "Labels": labels, "State": "running"}
    return json.dumps({**told, **fields})


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_containers_are_found_by_their_labels(tool):
    rows = [listed(tool, OURS), listed(tool, {**OURS, "rank": "0"}, State="exited")]
    first, second = parse_containers("\n".join(rows) if tool == "docker" else f"[{', '.join(rows)}]")
    assert (first.name, first.labels, first.run, first.id) == ("n", WHO, None, "")
    assert second.labels.rank == 0


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_a_container_has_the_id_of_its_tool_and_the_run_of_its_rank(tool):
    row = listed(tool, {**OURS, "run": "12.5"}, **{"ID" if tool == "docker" else "Id": "0a"})
    (one,) = parse_containers(row if tool == "docker" else f"[{row}]")
    assert (one.id, one.labels, one.run) == ("0a", WHO, "12.5")


PODMAN_4_3 = """[
  {
    "AutoRemove": false,
    "Command": ["sh", "-c", "exec sleep 30"],
    "ExitCode": 0,
    "Image": "localhost/eng:1",
    "Labels": {
      "sparkfleet.deployment": "d",
      "sparkfleet.fleet": "f",
      "sparkfleet.generation": "1",
      "sparkfleet.group": "0",
      "sparkfleet.rank": "0",
      "sparkfleet.spec": "ee89791ca07bd7e6"
    },
    "Names": [
      "sparkfleet-f-d-g1-0-0"
    ],
    "Ports": null,
    "State": "created",
    "Created": 1795185418
  }
]
"""


def test_the_output_of_a_real_podman():
    (one,) = parse_containers(PODMAN_4_3)
    assert one.name == one.labels.container_name
    assert parse_containers("[]\n") == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[]",
        "{}",
        '{"Labels": 7}',
        listed("docker", {**OURS, "rank": "x"}),
        listed("docker", {}),
    ],
)
def test_foreign_containers_are_left_out(line):
    assert parse_containers(line) == ()
