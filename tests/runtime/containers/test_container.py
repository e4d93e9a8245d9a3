"""Real supervisors, real processes, and a container tool whose daemon is the test: both tools, by the same argv."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from container_values import name_of, supervisor_of

from sparkfleet.engines.base import RankCommand
from sparkfleet.engines.container import ContainerOptions, RankLabels
from sparkfleet.engines.container import run_argv as engines_run_argv
from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.container import Tool
from sparkfleet.runtime import process_runtime as process_module
from sparkfleet.runtime.base import ContainerSpec, Phase, RankSpec
from sparkfleet.runtime.containers import container as container_module
from sparkfleet.runtime.containers import orphan_containers
from sparkfleet.runtime.containers.container import Container, ContainerExit, run_argv
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL, labels
from sparkfleet.runtime.exit_codes import is_out_of_memory, is_tool_lost
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import process

SECRET = "s3cret-token"
IMAGE = "x.example/engine@sha256:" + "0" * 64
MISSING = "x.example/none:1"
IDLE = "print(os.environ['TOKEN'], flush=True)\ntell(os.getpid())\nsignal.pause()"
ENDLESS = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell(os.getpid())\nwhile True: signal.pause()"

CLIENT = """#!{python} -ISB
# A docker or podman without anything of its own: says all to the daemon, prints what it says.
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({socket!r})
tool = os.path.basename(sys.argv[0])
link.sendall(json.dumps([tool, os.getpid(), sys.argv[1:], dict(os.environ)]).encode() + b"\\n")
for line in link.makefile("rb"):
    stream, content = json.loads(line)
    if stream == "exit":
        sys.exit(content)
    os.write(stream, content.encode())
"""
NO_IMAGE = {
    "docker": "docker: Error response from daemon: No such image: {}\n\nRun 'docker run --help' for more information\n",
    "podman": "Error: {}: image not known\n",
}
NOT_FOUND = {
    "docker": 'docker: Error response from daemon: exec: "nosuch": executable file not found in $PATH: unknown.\n',
    "podman": 'Error: runc: exec: "nosuch": executable file not found in $PATH: OCI runtime attempted …\n',
}


@dataclass
class Made:
    """A container of the daemon."""

    name: str
    labels: dict[str, str]
    env: dict[str, str]
    state: str = "created"
    oom_killed: bool = False
    child: asyncio.subprocess.Process | None = None
    code: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Daemon:
    """State behind the fake tools. Nothing that it starts descends from a supervisor, as with docker."""

    def __init__(self, directory: Path) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.made: dict[str, Made] = {}
        self.out_of_memory = False
        self.is_slow = asyncio.Event()
        """Set: containers are never created, and their clients wait."""
        self.asked = asyncio.Event()
        self.removing: list[str] = []
        """Answers of the next removals, which then do nothing."""
        self.clients: list[int] = []
        self._socket = directory / "d.sock"
        self._bin = directory / "bin"
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._bin.mkdir()
        for tool in ("docker", "podman"):
            path = self._bin / tool
            path.write_text(CLIENT.format(python=sys.executable, socket=str(self._socket)))
            path.chmod(0o700)
        self._server = await asyncio.start_unix_server(self._serve, self._socket)

    async def close(self) -> None:
        self._server.close()
        for one in self.made.values():
            if one.child and one.child.returncode is None:
                one.child.kill()
                await one.child.wait()
        if self._serving:
            await asyncio.wait(self._serving)

    def made_by_hand(self, name: str, labels: dict[str, str]) -> Made:
        self.made[name] = Made(name, labels, {}, state="exited")
        return self.made[name]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        tool, pid, words, env = json.loads(await reader.readline())
        self.calls.append((tool, *words))
        verb = words[0]
        answer = getattr(self, f"_{verb}")

        def tell(stream: object, content: object) -> None:
            writer.write(json.dumps([stream, content]).encode() + b"\n")

        if verb == "run":
            self.clients.append(pid)
        code = await answer(tool, words[1:], env, tell)
        tell("exit", code)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def _run(self, tool, words, env, tell) -> int:
        self.asked.set()
        if self.is_slow.is_set():
            await self.never()
            return 0
        flags, image, command = split(words)
        if image == MISSING:
            tell(2, NO_IMAGE[tool].format(image))
            return 125
        if flags["--name"][0] in self.made:
            tell(2, f"{tool}: Error: the name is in use\n")
            return 125
        passed = {
            w.partition("=")[0]: w.partition("=")[2] or env[w.partition("=")[0]] for w in flags["--env"]
        }
        made = Made(flags["--name"][0], dict(w.split("=", 1) for w in flags["--label"]), passed)
        self.made[made.name] = made
        Path(flags["--cidfile"][0]).write_text(f"id-of-{made.name}\n")
        if command == ["nosuch"]:
            tell(2, NOT_FOUND[tool])
            made.ended.set()
            return 127
        return await self._live(made, command, tell)

    async def never(self) -> None:
        while self.is_slow.is_set():
            await asyncio.sleep(0.02)

    async def _live(self, made: Made, command: list[str], tell) -> int:
        made.child = await asyncio.create_subprocess_exec(
            *command,
            env=made.env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        made.state = "running"
        while line := await made.child.stdout.readline():
            tell(1, line.decode())
        code = await made.child.wait()
        made.code = 128 - code if code < 0 else code
        made.state, made.oom_killed = "exited", self.out_of_memory
        made.ended.set()
        return made.code

    async def _stop(self, tool, words, env, tell) -> int:
        made = self._made(words[-1])
        if made is None:
            tell(2, "Error: no such container\n")
            return 1
        if made.state == "running":
            made.child.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(made.ended.wait(), int(words[1]))
            self._shoot(made)
            await made.ended.wait()
        return 0

    async def _kill(self, tool, words, env, tell) -> int:
        self._shoot(self._made(words[-1]))
        return 0

    async def _rm(self, tool, words, env, tell) -> int:
        assert words[:2] == ["--force", "--volumes"]
        if self.removing:
            tell(
                2, f"Error response from daemon: removal of container {words[-1]} is {self.removing.pop()}\n"
            )
            return 1
        if made := self._made(words[-1]):
            self._shoot(made)
            if made.child:
                await made.ended.wait()
            self.made.pop(made.name, None)
        return 0

    async def _container(self, tool, words, env, tell) -> int:
        assert words[:2] == ["inspect", "--format"]
        made = self._made(words[-1])
        if made is None:
            tell(2, "Error: no such container\n")
            return 1
        tell(1, f"{made.state} {str(made.oom_killed).lower()}\n")
        return 0

    async def _ps(self, tool, words, env, tell) -> int:
        label, _, value = words[words.index("--filter") + 1].removeprefix("label=").partition("=")
        for made in self.made.values():
            if made.labels.get(label) == value:
                tell(1, json.dumps(row(tool, made)) + "\n")
        return 0

    def _made(self, word: str) -> Made | None:
        """By its name or its id."""
        return self.made.get(word.removeprefix("id-of-"))

    @staticmethod
    def _shoot(made: Made) -> None:
        if made.child and made.child.returncode is None:
            made.child.kill()


def split(words: list[str]) -> tuple[dict[str, list[str]], str, list[str]]:
    """Flags with their values, the image, and the command in it."""
    flags: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            return flags, word, list(rest)
        valued = word != "--rm" and "=" not in word
        flags.setdefault(word, []).append(next(rest) if valued else "")
    raise AssertionError("no image")


def row(tool: str, made: Made) -> dict[str, object]:
    if tool == "docker":
        told = ",".join(f"{k}={v}" for k, v in made.labels.items())
        return {"Names": made.name, "Labels": told, "State": made.state}
    return {"Names": [made.name], "Labels": made.labels, "State": made.state}


both = pytest.mark.parametrize("tool", ["docker", "podman"], indirect=True)


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> str:
    """Docker, unless a test is for `both`: test_real_tools.py has the real ones."""
    return getattr(request, "param", "docker")


@pytest.fixture
async def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    await daemon.open()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    yield daemon
    daemon.is_slow.clear()
    await daemon.close()


@pytest.fixture
async def runtime(
    daemon: Daemon, tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ProcessRuntime]:
    monkeypatch.setattr(process_module, "_STRAY_GRACE_S", 0.1)
    runtime = ProcessRuntime(tmp_path / "run", f"test-{os.getpid()}-{next(COUNT)}", tools=(tool,))
    yield runtime
    daemon.is_slow.clear()
    await runtime.sweep(frozenset())
    assert daemon.made == {}


COUNT = itertools.count()


@pytest.fixture
def in_container(runtime: ProcessRuntime, make_spec, tool: str) -> Callable[..., RankSpec]:
    """A spec of a rank in a container."""

    def make(
        argv: tuple[str, ...], *, rank: int = 0, image: str = IMAGE, generation: int = 1, **fields: object
    ):
        identity = RankLabels(
            fleet=runtime._fleet, deployment="qwen", generation=generation, group=0, rank=rank
        )
        launch = RankCommand(argv=argv, env=(("A", "1"),), token_env="TOKEN")
        box = ContainerOptions(tool=tool, image=image, labels=identity, gpu=False)
        known = {
            "id": {**identity.model_dump(exclude={"group"}), "replica": 0},
            "container": ContainerSpec(tool=tool, image=image),
            "secret_env": (("TOKEN", SECRET),),
        }
        return make_spec(engines_run_argv(launch, box), **{**known, **fields})

    return make


def ours(spec: RankSpec) -> dict[str, str]:
    """The labels of an earlier container of a rank."""
    told = {**spec.id.model_dump(exclude={"replica"}), "group": 0, "spec": "of an earlier version"}
    return {f"sparkfleet.{name}": str(value) for name, value in told.items()}


# A life


@both
async def test_a_life(daemon, runtime, running, herald, in_container, tool):
    spec = in_container(herald.script(IDLE), grace_s=2.5)
    rank = await running(spec)
    pid = await herald.hear_pid()
    made = daemon.made[name_of(spec)]
    assert made.env == {"A": "1", "TOKEN": SECRET, "SPT_NOENV": "1", **labels(runtime._fleet, str(spec.id))}
    assert made.labels["sparkfleet.deployment"] == "qwen"
    assert (await rank.status()).pid == daemon.clients[0] != pid
    stopped = await rank.stop()
    assert (stopped.phase, stopped.exit_code) == (Phase.EXITED, -signal.SIGTERM)
    assert stopped.reason == "stopped: by its owner's request"
    assert process(pid) is None
    assert daemon.made == {}
    assert (tool, "stop", "-t", "3", f"id-of-{name_of(spec)}") in daemon.calls
    assert "***\n" in Path(spec.log_path).read_text()


async def test_no_secret_is_in_an_argument(daemon, running, herald, in_container):
    await (await running(in_container(herald.script(IDLE)))).stop()
    assert SECRET not in str(daemon.calls)


async def test_an_engine_that_ignores_sigterm_is_killed(daemon, running, herald, in_container):
    rank = await running(in_container(herald.script(ENDLESS)))
    pid = await herald.hear_pid()
    assert (await rank.stop()).exit_code == -signal.SIGKILL
    assert process(pid) is None
    assert daemon.made == {}


async def test_a_container_that_was_never_made_is_not_waited_for(daemon, running, in_container):
    daemon.is_slow.set()
    rank = await running(in_container(("true",)))
    await daemon.asked.wait()
    assert (await rank.stop()).exit_code == -signal.SIGTERM


async def test_another_runtime_adopts_it(tmp_path, runtime, herald, in_container):
    spec = in_container(herald.script(IDLE))
    started = await runtime.start(spec)
    other = ProcessRuntime(tmp_path / "run", runtime._fleet)
    assert await other.start(spec) == started == (await other.list())[0]
    rank = await other.own(spec.id)
    assert (await rank.status()).owned
    await rank.close()


async def test_a_preparation_runs_on_the_node(daemon, running, herald, in_container):
    prepare = herald.script("tell('prepared', *sorted(os.environ.keys() & {'TOKEN'}))")
    await running(in_container(herald.script(IDLE), prepare=prepare))
    assert await herald.hear() == ["prepared", "TOKEN"]
    assert daemon.made == {} or await herald.hear_pid()


# How it ended


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("sys.exit(3)", 3, "the engine exited with code 3: failed"),
        ("sys.exit(0)", 0, "the engine exited with code 0: ended by itself"),
        ("sys.exit(125)", 125, "the engine exited with code 125: failed"),
        ("os.kill(os.getpid(), 9)", -9, "the engine ended by SIGKILL"),
    ],
)
async def test_the_owner_is_told_how_an_engine_ended(
    daemon, running, herald, in_container, body, code, words
):
    rank = await running(in_container(herald.script(f"print('last words', flush=True)\n{body}")))
    end = await rank.wait()
    assert (end.phase, end.exit_code) == (Phase.EXITED, code)
    assert words in end.reason
    assert end.reason.endswith("last words")
    assert daemon.made == {}


async def test_a_lack_of_memory_is_on_record(daemon, running, herald, in_container):
    daemon.out_of_memory = True
    end = await (await running(in_container(herald.script("os.kill(os.getpid(), 9)")))).wait()
    assert end.exit_code == -signal.SIGKILL
    assert end.reason.endswith("or by a person (out of memory, by docker's record)")
    assert is_out_of_memory(end.reason)
    assert daemon.made == {}


@pytest.mark.parametrize(
    "answer",
    [
        "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?",
        "failed to connect to the docker API at unix:///run/docker.sock; check if the daemon is running",
    ],
)
async def test_a_daemon_that_is_gone_at_the_end_is_its_reason(daemon, running, herald, in_container, answer):
    """test_real_tools.py has the first answer from Docker itself; the second is that of releases from 29 on."""
    daemon.removing = [answer]
    end = await (await running(in_container(herald.script("os.kill(os.getpid(), 9)")))).wait()
    assert end.exit_code == -signal.SIGKILL
    assert is_tool_lost(end.reason)
    assert end.reason.splitlines()[0].startswith("docker does not answer any more: ")


@both
async def test_a_missing_image_is_told_in_words(daemon, running, in_container, tool):
    end = await (await running(in_container(("serve",), image=MISSING))).wait()
    assert end.exit_code == 125
    assert end.reason.splitlines()[0] == f"the image {MISSING} is not on this node: {tool} pull {MISSING}"


@both
async def test_a_missing_command_is_told_in_words(daemon, running, in_container):
    end = await (await running(in_container(("nosuch",)))).wait()
    assert end.exit_code == 127
    assert end.reason.splitlines()[0] == f"its command was not found in the image {IMAGE}"
    assert daemon.made == {}


async def test_somebody_elses_container_of_that_name_is_left_alone(daemon, running, in_container, tool):
    spec = in_container(("true",))
    theirs = daemon.made_by_hand(name_of(spec), {"of": "somebody else"})
    end = await (await running(spec)).wait()
    assert end.reason.startswith(f"{tool} could not run its container: {tool}: Error: the name is in use")
    assert daemon.made.pop(theirs.name) is theirs


async def test_a_tool_that_is_not_there(tmp_path, runtime, in_container, monkeypatch, tool):
    spec = in_container(("true",))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "run"))
        status = await runtime.start(spec)
    assert (status.phase, status.exit_code) == (Phase.EXITED, 127)
    assert status.reason.startswith(f"{tool} cannot be started: ")


async def test_an_argv_that_runs_no_container_is_refused(runtime, in_container, tool):
    spec = in_container(("true",)).model_copy(update={"argv": ("vllm", "serve")})
    with pytest.raises(NodeError, match=f"begin with {tool} run"):
        await runtime.start(spec)


# What is left over


@both
async def test_the_owner_removes_what_a_killed_supervisor_left(
    daemon, runtime, running, herald, in_container, tool
):
    spec = in_container(herald.script(ENDLESS))
    rank = await running(spec)
    pid = await herald.hear_pid()
    os.kill(supervisor_of(await rank.status()), signal.SIGKILL)
    end = await rank.wait()
    assert end.reason.startswith("its supervisor was killed, and the engine with it; also killed: ")
    assert f"container {name_of(spec)} ({tool})" in end.reason
    assert process(pid) is None
    assert daemon.made == {}
    assert await runtime.post_mortem(spec.id) == end


async def test_a_start_removes_what_a_killed_supervisor_left(daemon, runtime, herald, in_container, ended):
    spec = in_container(herald.script(ENDLESS))
    started = await runtime.start(spec)
    pid, supervisor = await herald.hear_pid(), supervisor_of(started)
    os.kill(supervisor, signal.SIGKILL)
    await ended(supervisor)
    assert process(pid), "a container outlives its client"
    await runtime.start(spec)
    assert await herald.hear_pid() != pid
    assert process(pid) is None


async def test_a_start_removes_a_container_of_the_other_tool(tmp_path, daemon, runtime, herald, in_container):
    spec = in_container(herald.script(IDLE))
    daemon.made_by_hand("old", ours(spec))
    await ProcessRuntime(tmp_path / "run", runtime._fleet).start(spec)
    await herald.hear_pid()
    assert set(daemon.made) == {name_of(spec)}
    assert {call[:2] for call in daemon.calls} >= {("podman", "ps"), ("docker", "ps")}


@both
async def test_sweep_goes_by_label(daemon, runtime, herald, in_container, tool):
    script = herald.script(ENDLESS)
    kept, unwanted, lost = [
        in_container(script, rank=rank, log_path=f"{runtime._run_dir}/{rank}") for rank in range(3)
    ]
    for spec in (kept, unwanted, lost):
        last = await runtime.start(spec)
        await herald.hear_pid()
    os.kill(supervisor_of(last), signal.SIGKILL)
    labels = daemon.made[name_of(lost)].labels
    theirs = daemon.made_by_hand("theirs", {**labels, "sparkfleet.fleet": "another"})
    swept = await runtime.sweep(frozenset({kept.id}))
    assert f"container {name_of(lost)} ({tool})" in swept
    assert f"rank {unwanted.id}" in swept
    assert {*daemon.made} == {name_of(kept), theirs.name}
    assert [status.id for status in await runtime.list()] == [kept.id]
    daemon.made.pop("theirs")


async def test_a_container_that_is_being_removed_is_waited_for(daemon, runtime, in_container, monkeypatch):
    monkeypatch.setattr(orphan_containers, "_REMOVAL_S", 0.01)
    daemon.made_by_hand("old", ours(in_container(("true",))))
    daemon.removing = ["already in progress"] * 3
    assert await runtime.sweep(frozenset()) == ("container old (docker)",)
    assert (daemon.made, daemon.removing) == ({}, [])


async def test_a_container_that_cannot_be_removed_is_not_said_to_be(daemon, runtime, in_container):
    daemon.made_by_hand("old", ours(in_container(("true",))))
    daemon.removing = ["impossible"]
    assert await runtime.sweep(frozenset()) == ()
    assert set(daemon.made) == {"old"}


async def test_a_hanging_supervisor_is_killed_with_its_container(
    daemon, running, herald, in_container, monkeypatch
):
    monkeypatch.setattr(process_module, "_STOP_MARGIN_S", 0.1)
    rank = await running(in_container(herald.script(ENDLESS)))
    pid = await herald.hear_pid()
    os.kill(supervisor_of(await rank.status()), signal.SIGSTOP)
    assert (await rank.stop()).phase is Phase.EXITED
    assert process(pid) is None
    assert daemon.made == {}


async def test_a_client_that_is_killed_takes_its_container_along(daemon, running, herald, in_container, tool):
    rank = await running(in_container(herald.script(ENDLESS)))
    pid = await herald.hear_pid()
    os.kill((await rank.status()).pid, signal.SIGKILL)
    end = await rank.wait()
    assert (end.exit_code, end.reason.splitlines()[0]) == (
        -9, f"the {tool} client that ran it ended by SIGKILL: by the kernel for lack of memory, or by a person",
    )  # fmt: skip
    assert process(pid) is None
    assert daemon.made == {}


async def test_a_tool_that_fails_finds_nothing(daemon, runtime, monkeypatch):
    async def broken(*_: object) -> int:
        return 1

    monkeypatch.setattr(daemon, "_ps", broken)
    assert await runtime.sweep(frozenset()) == ()


# In parts


class Silent:
    """Children of which none ever ends by itself."""

    def __init__(self) -> None:
        self.spawned: list[int] = []
        self.terminated = False

    def spawn(self, argv, output=None):
        self.spawned.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
        return self.spawned[-1], asyncio.get_running_loop().create_future()

    async def terminate(self) -> None:
        self.terminated = True


async def test_a_tool_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(container_module, "_TOOL_S", 0.01)
    monkeypatch.setattr(container_module, "_CLIENT_S", 0.01)
    children = Silent()
    (tmp_path / "cid").write_text("id\n")
    container = Container(children, tmp_path / "cid", "docker", IMAGE)
    await container.stop(asyncio.get_running_loop().create_future(), -1)
    await container.bury()
    assert children.terminated
    assert len(children.spawned) == 3, "stop, inspect, rm"
    ends = [await asyncio.to_thread(os.waitpid, pid, 0) for pid in children.spawned]
    assert [os.waitstatus_to_exitcode(status) for _, status in ends] == [-signal.SIGKILL] * 3


@pytest.mark.parametrize(("code", "tail", "words"), [
    (127, "Error: crun: executable file `x` not found in $PATH", f"its command was not found in the image {IMAGE}"),
    (126, 'Error: runc: exec: "/etc": permission denied', f"its command is not executable in the image {IMAGE}"),
    (127, "Error: runc: mkdir /sys/fs/cgroup/cpuset/x: no such file or directory",
     "podman could not run its container: Error: runc: mkdir /sys/fs/cgroup/cpuset/x: no such file or directory"),
    (125, "docker: Error response from daemon: it is asleep.\n\nRun 'docker run --help' for more information",
     "podman could not run its container: docker: Error response from daemon: it is asleep."),
    (126, "docker: permission denied while trying to connect to the Docker daemon socket\n\nRun 'docker run --help'",
     "podman could not run its container: docker: permission denied while trying to connect to the Docker daemon socket"),
    (125, "", "podman could not run its container: no reason given"),
    (200, "", "the engine exited with code 200: failed"),
])  # fmt: skip
def test_what_a_tool_says_in_words(tmp_path, code, tail, words):
    assert Container(Silent(), tmp_path / "cid", "podman", IMAGE).ending(code, tail) == (code, words)


@pytest.mark.parametrize(("state", "began", "alive"), [
    ("", False, False), ("created", False, False), ("exited", True, False), ("running", True, True),
])  # fmt: skip
def test_an_autopsy(state, began, alive):
    ended = ContainerExit(state)
    assert (ended.began, ended.alive) == (began, alive)


def test_what_a_supervisor_adds(tmp_path):
    assert run_argv(("docker", "run", "--rm", "--name", "n", "image", "--rm"), tmp_path) == (
        "docker", "run", "--cidfile", str(tmp_path),
        "--env", FLEET_LABEL, "--env", RANK_LABEL, "--env", "SPT_NOENV", "--oom-score-adj", "500",
        "--name", "n", "image", "--rm",
    )  # fmt: skip
