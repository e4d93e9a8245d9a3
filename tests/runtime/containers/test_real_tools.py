"""Ranks in real containers of podman and of Docker. No registry is used: the image is made of programs of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker_engine
import pytest
from container_values import limits, name_of, supervisor_of
from docker_engine import DockerEngine

from sparkfleet.engines.base import Mount, RankCommand
from sparkfleet.engines.container import ContainerOptions, RankLabels, run_argv
from sparkfleet.hostfacts.container import Tool
from sparkfleet.runtime.base import ContainerSpec, Phase, RankSpec
from sparkfleet.runtime.containers.halted_container import halted_words
from sparkfleet.runtime.environment import labels
from sparkfleet.runtime.exit_codes import is_out_of_memory, is_tool_lost
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import descendants, labelled, process, processes

pytestmark = pytest.mark.integration

IMAGE = "localhost/sparkfleet-test:1"
SECRET = "s3cret-token"
SERVE = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


@dataclass(frozen=True)
class ContainerTool:
    """A container tool with a store of its own, and the image in it."""

    name: Tool
    directory: Path
    docker: DockerEngine | None = None
    """Its engine, if it is Docker."""

    def __call__(self, *words: str) -> str:
        """Output of one of its commands."""
        return run(self.name, *words).stdout

    def containers(self) -> list[str]:
        """Names of all its containers."""
        return self("ps", "--all", "--format", "{{.Names}}").split()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def write_image(path: Path) -> None:
    """A shell, sleep, env and mkdir, with the libraries that they need."""
    programs = [found for name in ("sh", "sleep", "env", "mkdir") if (found := shutil.which(name))]
    told = subprocess.run(("ldd", *programs), capture_output=True, text=True, check=True).stdout
    libraries = {word for word in re.split(r"\s+", told) if word.startswith("/") and not word.endswith(":")}
    with tarfile.open(path, "w") as tar:
        for file in programs:
            tar.add(os.path.realpath(file), f"bin/{Path(file).name}")
        for file in libraries:
            tar.add(os.path.realpath(file), file.lstrip("/"))


@pytest.fixture(scope="module", params=["podman", "docker"])
def tool(request: pytest.FixtureRequest) -> Iterator[ContainerTool]:
    """A container tool of this module alone."""
    # Beyond 50 characters of `runroot` podman's clean-up ends with an error, and `podman run` waits 20 s for it.
    with tempfile.TemporaryDirectory(prefix=request.param, dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        write_image(directory / "image.tar")
        with pytest.MonkeyPatch.context() as patch:
            yield from {"podman": podman, "docker": docker}[request.param](directory, patch)


def podman(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[ContainerTool]:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    storage = f'driver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n'
    (directory / "storage.conf").write_text(f"[storage]\n{storage}")
    patch.setenv("CONTAINERS_STORAGE_CONF", str(directory / "storage.conf"))
    patch.setenv("CONTAINERS_CONF", str(directory / "containers.conf"))
    refusals = [refused(directory, name) for name in ("crun", "runc") if shutil.which(name)]
    if all(refusals):
        pytest.skip(f"podman runs nothing here: {refusals}")
    yield ContainerTool("podman", directory)
    run("podman", "rmi", "--all", "--force")  # never `system reset`: it resets what is not in this store, too


def docker(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[ContainerTool]:
    with docker_engine.running(directory) as engine:
        patch.setenv("DOCKER_HOST", engine.url)
        run("docker", "import", str(directory / "image.tar"), IMAGE)
        tried = run("docker", "run", "--rm", "--network=host", IMAGE, "sh", "-c", "exit 7")
        if tried.returncode != 7:
            pytest.skip(f"Docker runs nothing here: {tried.stderr.strip()}")
        yield ContainerTool("docker", directory, engine)


def refused(directory: Path, runtime: str) -> str:
    """Reason why nothing runs in podman with this OCI runtime; "" if it does."""
    # Locks and the mark of a boot are shared by all stores of a user, unless they are told to be elsewhere.
    apart = f'lock_type = "file"\ntmp_dir = "{directory}/tmp"\n'
    engine = f'runtime = "{runtime}"\nevents_logger = "file"\n{apart}'
    (directory / "containers.conf").write_text(
        f"[containers]\ndefault_ulimits = {limits()}\n[engine]\n{engine}"
    )
    run("podman", "import", str(directory / "image.tar"), IMAGE)
    tried = run(
        "podman", "run", "--rm", "--network", "host", "--log-driver=none", IMAGE, "sh", "-c", "exit 7"
    )
    return "" if tried.returncode == 7 else tried.stderr.strip()


@pytest.fixture
async def runtime(tool: ContainerTool, tmp_path: Path) -> Iterator[ProcessRuntime]:
    runtime = ProcessRuntime(tmp_path / "run", f"{tool.name}-{os.getpid()}", tools=(tool.name,))
    yield runtime
    await runtime.sweep(frozenset())
    assert tool.containers() == []


@pytest.fixture
def in_container(runtime: ProcessRuntime, tool: ContainerTool, make_spec) -> Callable[..., RankSpec]:
    """A spec of a rank that runs a shell script in a container."""

    def make(
        script: str, *, rank: int = 0, image: str = IMAGE, argv: tuple[str, ...] = (), **fields
    ) -> RankSpec:
        identity = RankLabels(fleet=runtime._fleet, deployment="qwen", generation=1, group=0, rank=rank)
        launch = RankCommand(argv=argv or ("sh", "-c", script), env=(("A", "1"),), token_env="TOKEN")
        box = ContainerOptions(tool=tool.name, image=image, labels=identity, gpu=False)
        return make_spec(
            run_argv(launch, box),
            id={**identity.model_dump(exclude={"group"}), "replica": 0},
            container=ContainerSpec(tool=tool.name, image=image),
            secret_env=(("TOKEN", SECRET),),
            log_path=str(runtime._run_dir.parent / "logs" / f"{rank}.log"),
            **fields,
        )

    return make


async def printed(spec: RankSpec, line: str) -> None:
    async with asyncio.timeout(20):
        while line not in log(spec):
            await asyncio.sleep(0.05)


def log(spec: RankSpec) -> list[str]:
    path = Path(spec.log_path)
    return path.read_text().splitlines() if path.exists() else []


async def test_a_life(tool, runtime, running, in_container):
    spec = in_container(f"echo $TOKEN $A; {SERVE}", grace_s=5.0)
    rank = await running(spec)
    await printed(spec, "ready")
    assert log(spec)[1:] == ["*** 1", "ready"]
    assert (await rank.status()).phase is Phase.RUNNING
    told = tool("container", "inspect", "--format", "{{json .Config}}", name_of(spec))
    assert SECRET not in " ".join(spec.argv)
    assert json.loads(told)["Labels"]["sparkfleet.deployment"] == "qwen"
    inside = [p for p in labelled(labels(runtime._fleet, str(spec.id))) if "echo ready" in p.command]
    assert (
        [Path(f"/proc/{p.pid}/oom_score_adj").read_text() for p in inside if p.parent]
        == ["500\n"] * len(inside)
        != []
    )

    stopped = await rank.stop()
    assert (stopped.phase, stopped.exit_code, stopped.reason) == (
        Phase.EXITED,
        0,
        "stopped: by its owner's request",
    )
    assert "bye" in log(spec)
    assert tool.containers() == []
    assert not [p for p in inside if process(p.pid) == p]


async def test_an_engine_that_ignores_sigterm_is_killed(tool, running, in_container):
    spec = in_container(STUBBORN)
    rank = await running(spec)
    await printed(spec, "ready")
    assert (await rank.stop()).exit_code == -signal.SIGKILL
    assert tool.containers() == []


@pytest.mark.parametrize(("script", "code", "words"), [
    ("echo last words; exit 125", 125, "the engine exited with code 125: failed"),
    ("echo last words; exit 3", 3, "the engine exited with code 3: failed"),
    ("echo last words; exit 137", -9, "the engine ended by SIGKILL: by the kernel for lack of memory, or by a person"),
    ("echo last words; exit 0", 0, "should not end"),
])  # fmt: skip
async def test_the_owner_is_told_how_an_engine_ended(tool, running, in_container, script, code, words):
    rank = await running(in_container(script))
    end = await rank.wait()
    assert (end.phase, end.exit_code) == (Phase.EXITED, code)
    assert words in end.reason.splitlines()[0]
    assert end.reason.endswith("last words")
    assert tool.containers() == []


async def test_what_cannot_be_run_is_told_in_words(tool, running, in_container):
    missing = "localhost/none:1"
    end = await (await running(in_container("", image=missing))).wait()
    assert (end.exit_code, end.reason.splitlines()[0]) == (
        125, f"the image {missing} is not on this node: {tool.name} pull {missing}",
    )  # fmt: skip
    end = await (await running(in_container("", argv=("no-such-engine",)))).wait()
    assert (end.exit_code, end.reason.splitlines()[0]) == (
        127,
        f"its command was not found in the image {IMAGE}",
    )
    end = await (await running(in_container("", argv=("/etc",)))).wait()
    assert (end.exit_code, end.reason.splitlines()[0]) == (
        126,
        f"its command is not executable in the image {IMAGE}",
    )


async def test_two_ranks_side_by_side(tool, runtime, running, in_container):
    specs = [in_container(SERVE, rank=rank, grace_s=5.0) for rank in (0, 1)]
    ranks = [await running(spec) for spec in specs]
    for spec in specs:
        await printed(spec, "ready")
    assert sorted(tool.containers()) == [name_of(spec) for spec in specs]
    await ranks[0].stop()
    assert tool.containers() == [name_of(specs[1])]
    assert (await ranks[1].status()).phase is Phase.RUNNING


async def test_another_runtime_adopts_it(tmp_path, runtime, in_container):
    spec = in_container(SERVE)
    started = await runtime.start(spec)
    other = ProcessRuntime(tmp_path / "run", runtime._fleet)
    assert (await other.list())[0].pid == started.pid
    assert await other.start(spec) == started
    rank = await other.own(spec.id)
    assert (await rank.status()).digest == spec.digest
    await rank.close()


async def test_the_owner_removes_what_a_killed_supervisor_left(tool, running, in_container):
    spec = in_container(STUBBORN)
    rank = await running(spec)
    await printed(spec, "ready")
    os.kill(supervisor_of(await rank.status()), signal.SIGKILL)
    end = await rank.wait()
    assert end.reason == (
        f"its supervisor was killed, and the engine with it; also killed: container {name_of(spec)} ({tool.name})"
    )
    assert tool.containers() == []


async def test_a_start_removes_what_a_killed_supervisor_left(tool, runtime, in_container, ended):
    spec = in_container(STUBBORN)
    started = await runtime.start(spec)
    await printed(spec, "ready")
    first = tool("ps", "-q")
    lost = supervisor_of(started)
    os.kill(lost, signal.SIGKILL)
    await ended(lost)
    assert tool.containers() == [name_of(spec)]
    assert (await runtime.start(spec)).phase is Phase.RUNNING
    await printed(spec, "ready")
    assert tool("ps", "-q").split() != first.split()


async def test_sweep_removes_by_label_what_nobody_remembers(tool, runtime, in_container, ended):
    kept, lost = in_container(SERVE), in_container(STUBBORN, rank=1)
    statuses = [await runtime.start(spec) for spec in (kept, lost)]
    await printed(lost, "ready")
    await printed(kept, "ready")
    supervisor = supervisor_of(statuses[1])
    os.kill(supervisor, signal.SIGKILL)
    await ended(supervisor)
    for path in runtime._run_dir.glob("*_1-*"):
        path.unlink()
    assert await runtime.sweep(frozenset({kept.id})) == (f"container {name_of(lost)} ({tool.name})",)
    assert tool.containers() == [name_of(kept)]
    assert len(await runtime.list()) == 1


async def test_a_paused_container_that_a_killed_supervisor_left_is_removed(
    tool, runtime, in_container, ended
):
    spec = in_container(STUBBORN)
    started = await runtime.start(spec)
    await printed(spec, "ready")
    tool("pause", name_of(spec))
    supervisor = supervisor_of(started)
    os.kill(supervisor, signal.SIGKILL)
    await ended(supervisor)
    assert await runtime.sweep(frozenset()) == (f"container {name_of(spec)} ({tool.name})",)
    assert tool.containers() == []


async def test_a_client_that_is_killed_takes_its_container_along(tool, running, in_container):
    spec = in_container(STUBBORN)
    rank = await running(spec)
    await printed(spec, "ready")
    os.kill((await rank.status()).pid, signal.SIGKILL)
    end = await rank.wait()
    assert end.exit_code == -signal.SIGKILL
    assert end.reason.startswith(f"the {tool.name} client that ran it ended by SIGKILL")
    assert tool.containers() == []


def monitor_of(tool: ContainerTool, spec: RankSpec) -> int:
    """The process that watches a container: podman's conmon, or the container's shim."""
    if tool.docker is None:
        return int(tool("container", "inspect", "--format", "{{.State.ConmonPid}}", name_of(spec)))
    first = process(int(tool("container", "inspect", "--format", "{{.State.Pid}}", name_of(spec))))
    assert first
    return first.parent


async def test_a_container_whose_monitor_is_killed_is_removed_with_all_its_processes(
    tool, runtime, running, in_container
):
    """Podman itself no longer notices then that the container ends."""
    spec = in_container(STUBBORN)
    rank = await running(spec)
    await printed(spec, "ready")
    inside = processes_in(runtime, spec)
    os.kill(monitor_of(tool, spec), signal.SIGKILL)
    async with asyncio.timeout(30):
        end = await rank.wait()
    assert end.phase is Phase.EXITED
    assert end.exit_code != 0
    assert tool.containers() == []
    assert [p for p in inside if process(p.pid) == p] == []


def processes_in(runtime: ProcessRuntime, spec: RankSpec):
    """Processes of a rank's container, without its supervisor, which has the same labels."""
    found = [p for p in labelled(labels(runtime._fleet, str(spec.id))) if "echo ready" in p.command]
    assert found
    return found


def halted(container: str) -> str:
    """The words for a user who is not root: docker's containers are not the node's user's."""
    os.seteuid(65534)
    try:
        return halted_words(container)
    finally:
        os.seteuid(0)


async def until_halted(container: str, words: str) -> None:
    async with asyncio.timeout(20):
        while words not in halted(container) or bool(words) is not bool(halted(container)):
            await asyncio.sleep(0.05)


async def test_a_container_in_which_nothing_runs_is_found_by_every_user_and_ends(tool, running, in_container):
    """Sockets and environments of root's processes are not readable."""
    spec = in_container("sleep 1000 & echo ready; wait", grace_s=2.0)
    rank = await running(spec)
    await printed(spec, "ready")
    inspected = tool("container", "inspect", "--format", "{{.Id}} {{.State.Pid}}", name_of(spec))
    container, _, first = inspected.strip().partition(" ")
    assert halted(container) == ""
    assert halted(container[:12]) == "", "no id: any process may have that in the path of its cgroup"
    (server,) = descendants(int(first), processes())
    os.kill(server.pid, signal.SIGSTOP)
    await until_halted(container, f"process {server.pid} of its container was stopped by a signal")
    os.kill(server.pid, signal.SIGCONT)
    await until_halted(container, "")
    tool("pause", name_of(spec))
    await until_halted(container, "its container is paused")
    async with asyncio.timeout(60):
        await rank.stop()
    assert tool.containers() == []
    assert process(server.pid) != server


@pytest.mark.parametrize("tool", ["docker"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_ends_with_dockers_daemon_and_the_reason_names_it(
    tool, runtime, running, in_container, number
):
    """An update of Docker's packages ends it by SIGTERM. That is no lack of memory, and no fault of the engine."""
    spec = in_container(SERVE)
    rank = await running(spec)
    await printed(spec, "ready")
    inside = processes_in(runtime, spec)
    await asyncio.to_thread(tool.docker.end_dockerd, number)
    async with asyncio.timeout(30):
        end = await rank.wait()
    tool.docker.start()
    assert end.reason.startswith("docker does not answer any more: it was stopped or restarted"), end.reason
    assert is_tool_lost(end.reason)
    assert not is_out_of_memory(end.reason)
    assert [p for p in inside if process(p.pid) == p] == []

    assert (await runtime.start(spec)).phase is Phase.RUNNING
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(tool, "ps", "--quiet"):
            await asyncio.sleep(0.1)
    assert tool.containers() == [name_of(spec)], "the start removes what dockerd has kept of the first one"


async def test_output_without_end_fills_no_disk(tool, running, in_container):
    """Neither our log, which has a limit, nor one of the tool's own."""
    line = "x" * 4000
    spec = in_container(f"trap 'exit 0' TERM; while :; do echo {line}; done", grace_s=2.0)
    rank = await running(spec)
    await asyncio.sleep(10)
    assert (await rank.status()).phase is Phase.RUNNING
    logs = Path(spec.log_path).parent
    assert 1 << 20 < sum(file.stat().st_size for file in logs.iterdir()) < 40 << 20
    written = [file for file in tool.directory.rglob("*") if file.is_file() and "log" in file.name]
    assert sum(file.stat().st_size for file in written) < 1 << 20
    await rank.stop()
    assert tool.containers() == []


def test_what_its_root_writes_on_the_node_can_be_removed_by_the_nodes_user(tool: ContainerTool) -> None:
    """Compiled kernels of older images were root's, and filled the disk."""
    nobody = pwd.getpwnam("nobody").pw_uid
    kernels = tool.directory / "kernels"
    kernels.mkdir(mode=0o700)
    tool.directory.chmod(0o755)
    os.chown(kernels, nobody, -1)
    command = RankCommand(
        argv=("sh", "-c", f"mkdir -p {kernels}/image/triton && : > {kernels}/image/triton/kernel"),
        env=(),
        token_env="",
        mounts=(Mount(source=str(kernels), target=str(kernels), read_only=False),),
    )
    who = RankLabels(fleet="f-1", deployment="kernels", generation=1, group=0, rank=0)
    done = run(*run_argv(command, ContainerOptions(tool=tool.name, image=IMAGE, labels=who, gpu=False)))
    assert (kernels / "image/triton/kernel").stat().st_uid == 0, done.stderr
    removed = subprocess.run(
        ("rm", "-r", str(kernels / "image")), user=nobody, capture_output=True, text=True, check=False
    )
    assert (removed.returncode, removed.stderr, list(kernels.iterdir())) == (0, "", [])
