"""A rank as a container: one argv for docker and podman, in the foreground, as its supervisor's child. Pure.

Flags that are left out, and why:

- `--memory`: the driver allocates past the limit; it would bind the host side only (known issue cgroup-blind).
- `--privileged`: RDMA needs its devices and locked memory, no more.
- `--user`, with docker: an image's programs and its home may be root's alone. A container keeps root without its powers
  (`CAPABILITIES`). With rootless podman that root is the node's own user, by the user namespace.
- `--pids-limit`, with podman: it has one of its own (2,048), and fails if the user's cgroup has no such controller.
- `--restart`: one rank must not restart alone; the group decides (an exit with code 0 is a failure too).
- `--ipc host`: a private /dev/shm leaves nothing behind when a rank dies, and logind cannot remove it (logind-removeipc).
- `--pull`: images are staged before a rank starts, and pinned by digest; a start that downloads looks like one that hangs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkfleet.engines.base import FILES_IN_CONTAINER, Mount, RankCommand
from sparkfleet.errors import EngineError
from sparkfleet.hostfacts.container import Tool
from sparkfleet.values import Value

CAPABILITIES = ("DAC_OVERRIDE",)
"""Of root's capabilities the one that stays: the rank's files (0600) and its cache of kernels belong to the node's user."""
SSHD_CAPABILITIES = ("CHOWN", "FOWNER", "SETGID", "SETUID", "SYS_CHROOT")
"""Further ones if `sshd` logs MPI's ranks in."""
PIDS = 16_384
"""Most processes and threads of a docker container: an engine has some thousands, with a compiler per processor."""
HOME_IN_MEMORY = "/tmp"  # noqa: S108 (a container's own)
"""Home of a program on a read-only root file system."""
_OPEN = ("sh", "-c", 'umask 0; exec "$@"', "sh")
"""Starts a command whose directories everybody may write: the node's user has to remove what a container's root made, and
has nobody else beside it, as the directory above them is 0700."""
_WRITABLE = ("/tmp", "/run", "/var/tmp")  # noqa: S108 (a container's own)
SHM_BYTES = 16 << 30
"""Size of a container's /dev/shm (field report 000). It uses memory only as far as it is written to."""
STACK_BYTES = 64 << 20
"""Stack limit that NVIDIA recommends for its containers."""
LABEL = "sparkfleet."
_SPEC = "1"
"""Value of the label `spec`, which no code here reads. Earlier builds skip containers without it, and would leave them
running after an upgrade that goes back: the label can go with the next release."""
OWN_ENTRYPOINT = (
    "vllm/vllm-openai",
    "vllm/vllm-openai-cpu",
    "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo",
    "public.ecr.aws/q9t5s3a7/vllm-arm64-cpu-release-repo",
    "ghcr.io/ggml-org/llama.cpp",
)
"""Repositories whose entrypoint is the engine itself, so that it has to be replaced. The entrypoints of others only prepare
the environment (NGC's switches CUDA forward compatibility on) and run their arguments."""


B12X = "b12x"
"""In the name of a repository: its engine has b12x's kernels, and reads checkpoints and n-gram tables by io_uring. Docker's
and podman's list of system calls lacks it, and the engine ends: "io_uring initialization failed: …; enable io_uring in the
kernel/container policy" (b12x/loader/_ple_reader.c; NVIDIA's recipe for Qwen3.8-Flash-Next switches the list off)."""


class RankLabels(Value):
    """Labels and name of a rank's container, which identify it later."""

    fleet: str
    deployment: str
    generation: int
    group: int
    """Number of the group (replica) in its deployment, from 0."""
    rank: int

    @property
    def container_name(self) -> str:
        """One per rank and generation: docker and podman refuse a second container of that name."""
        return f"sparkfleet-{self.fleet}-{self.deployment}-g{self.generation}-{self.group}-{self.rank}"


class ContainerOptions(Value):
    """Options of a container beside the rank's command."""

    tool: Tool
    image: str
    """By digest (`name@sha256:…`), or the id of an image that is on the node."""
    origin: str = ""
    """Its name in its registry, from which the entrypoint follows; "" if `image` is that name."""
    labels: RankLabels
    gpu: bool = True
    rdma: bool = False
    """The group has more than one rank, on rails with RoCE devices."""
    files_dir: str = ""
    """Directory on the node with the launch's files; required if it has any."""
    logs_in: bool = False
    """The ranks of its group start over SSH between the containers (MPI)."""
    kv_staging_bytes: int = 0
    """Bytes of /dev/shm through which KV goes to the disk and back."""
    private: tuple[str, ...] = ()
    """Variables of the launch whose values are passed in the tool's own environment and only named in its arguments."""


def run_argv(command: RankCommand, options: ContainerOptions) -> tuple[str, ...]:
    """`docker run` or `podman run` for one rank.

    The values of `command.token_env`, `command.metrics_env` and of `options.private` have to be in the environment of the
    tool itself. Only users who may inspect containers on the node can read them.

    Raises:
        EngineError: the command has files, but the options have no directory for them.
    """
    unlabelled = (*_isolation(options), *_mounts(command, options), *_env(command, options))
    labels = _labels(options.labels)
    name = ("--name", options.labels.container_name)
    return (
        *(options.tool, "run", "--rm", "--pull=never", "--log-driver=none"),
        *name,
        *labels,
        *unlabelled,
        *_command(command, options),
    )


def stop_argv(tool: Tool, name: str, grace_s: float) -> tuple[str, ...]:
    """SIGTERM, `grace_s`, then SIGKILL for everything in the container. For one whose supervisor is gone."""
    return (tool, "stop", "-t", f"{grace_s:.0f}", name)


def find_argv(tool: Tool, fleet: str) -> tuple[str, ...]:
    """Command that lists the fleet's containers on a node, ended ones too, for `found`."""
    return (
        tool,
        "ps",
        "--all",
        "--no-trunc",
        "--filter",
        f"label={LABEL}fleet={fleet}",
        "--format",
        "{{json .}}",
    )


class RunningContainer(Value):
    """A container of this fleet on a node."""

    id: str = ""
    """Its tool's id: a later run of the rank has a container of the same name."""
    name: str
    labels: RankLabels
    run: str | None = None
    """Value of the label that its supervisor adds for one run of the rank; None by earlier releases, which added none."""


def parse_containers(listing: str) -> tuple[RunningContainer, ...]:
    """Parses the output of `find_argv`: one JSON object per line from docker, one array from podman.

    Containers with other or incomplete labels are left out: sparkfleet did not create them.
    """
    whole = _json(listing)
    rows = whole if isinstance(whole, list) else [_json(line) for line in listing.splitlines()]
    return tuple(one for row in rows if isinstance(row, dict) and (one := _found(row)) is not None)


def _json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    return value


def _found(row: Mapping[str, Any]) -> RunningContainer | None:
    names, found = row.get("Names"), _own_labels(row.get("Labels"))
    id_ = row.get("ID") or row.get("Id") or ""  # docker's, and podman's
    name = names[0] if isinstance(names, list) and names else names
    try:
        labels = RankLabels(
            fleet=found["fleet"], deployment=found["deployment"], generation=int(found["generation"]),
            group=int(found["group"]), rank=int(found["rank"]),
        )  # fmt: skip
        return RunningContainer(id=str(id_), name=str(name), labels=labels, run=found.get("run"))
    except (KeyError, ValueError):
        return None


def _own_labels(labels: object) -> dict[str, str]:
    """Sparkfleet's labels: podman prints a mapping, docker one text."""
    if isinstance(labels, str):
        labels = dict(word.partition("=")[::2] for word in labels.split(","))
    if not isinstance(labels, dict):
        return {}
    return {
        str(key).removeprefix(LABEL): str(value)
        for key, value in labels.items()
        if str(key).startswith(LABEL)
    }


def _labels(labels: RankLabels) -> tuple[str, ...]:
    pairs = {**labels.model_dump(), "spec": _SPEC}
    return tuple(word for name, value in pairs.items() for word in ("--label", f"{LABEL}{name}={value}"))


def _isolation(options: ContainerOptions) -> tuple[str, ...]:
    flags = ["--network", "host", "--shm-size", _shm(options), *_capabilities(options)]
    flags += ["--pids-limit", str(PIDS)] if options.tool == "docker" else []
    flags += _read_only(options) if _is_engines_own(options) else []
    if options.gpu:
        flags += ["--gpus", "all"] if options.tool == "docker" else ["--device", "nvidia.com/gpu=all"]
        flags += ["--ulimit", "memlock=-1:-1", "--ulimit", f"stack={STACK_BYTES}:{STACK_BYTES}"]
    if options.rdma:
        flags += ["--device", "/dev/infiniband"]
    return tuple(flags)


def _shm(options: ContainerOptions) -> str:
    size = SHM_BYTES + options.kv_staging_bytes
    return f"{-(-size // (1 << 30))}g"


def _capabilities(options: ContainerOptions) -> list[str]:
    kept = [
        *CAPABILITIES,
        *(SSHD_CAPABILITIES if options.logs_in else ()),
        *(["IPC_LOCK"] if options.rdma else []),
    ]
    added = [word for name in kept for word in ("--cap-add", name)]
    limits = ["--cap-drop", "ALL", *added, "--security-opt", "no-new-privileges"]
    return [*limits, "--security-opt", "seccomp=unconfined"] if B12X in _named(options) else limits


def _read_only(options: ContainerOptions) -> list[str]:
    """A read-only root file system, with memory where programs write. Compiled code is loaded from there: `exec`."""
    places = [word for path in _WRITABLE for word in ("--tmpfs", f"{path}:rw,exec,nosuid,nodev,mode=1777")]
    return ["--read-only", *places, "--env", f"HOME={HOME_IN_MEMORY}"]


def _mounts(command: RankCommand, options: ContainerOptions) -> tuple[str, ...]:
    mounts = list(command.mounts)
    if command.files:
        if not options.files_dir:
            raise EngineError(
                f"{options.labels.container_name}: no directory on the node is set for its files."
            )
        mounts.append(Mount(source=options.files_dir, target=FILES_IN_CONTAINER))
    return tuple(word for mount in mounts for word in ("--volume", _volume(mount)))


def _volume(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"


def _env(command: RankCommand, options: ContainerOptions) -> tuple[str, ...]:
    flags: list[str] = []
    for name, value in command.env:
        flags += ["--env", name if name in options.private else f"{name}={value}"]
    for name in (command.token_env, command.metrics_env):
        flags += ["--env", name] if name else []
    return tuple(flags)


def _command(command: RankCommand, options: ContainerOptions) -> tuple[str, ...]:
    argv = (*_OPEN, *command.argv) if _writes_on_the_node(command, options) else command.argv
    if argv and _is_engines_own(options):
        return ("--entrypoint", argv[0], options.image, *argv[1:])
    return (options.image, *argv)


def _writes_on_the_node(command: RankCommand, options: ContainerOptions) -> bool:
    """True if the command writes into directories of the node: compiled kernels, KV on the disk.

    sshd is left out, by which TensorRT-LLM's ranks start: it refuses files of its own that everybody may write.
    """
    is_writable = any(not mount.read_only for mount in command.mounts)
    return bool(command.argv) and is_writable and not options.logs_in


def _is_engines_own(options: ContainerOptions) -> bool:
    """True if the image's entrypoint is the engine itself.

    Others' entrypoints prepare the image when it starts: NVIDIA's links libraries in it, which a read-only root refuses.
    """
    return _named(options) in OWN_ENTRYPOINT


def _named(options: ContainerOptions) -> str:
    """The image's name without digest, tag and the default registry."""
    name = (options.origin or options.image).partition("@")[0].removeprefix("docker.io/")
    head, slash, tail = name.rpartition("/")
    return f"{head}{slash}{tail.partition(':')[0]}"
