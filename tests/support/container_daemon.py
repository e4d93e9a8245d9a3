"""A container tool whose daemon is the test: both tools, by the same argv, with real processes in place of containers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparkfleet.engines.base import RankCommand
from sparkfleet.engines.container import ContainerOptions, RankLabels
from sparkfleet.engines.container import run_argv as engines_run_argv
from sparkfleet.hostfacts.container import Tool
from sparkfleet.runtime import process_runtime as process_module
from sparkfleet.runtime.base import ContainerSpec, RankSpec
from sparkfleet.runtime.process_runtime import ProcessRuntime

SECRET = "s3cret-token"
IMAGE = "x.example/engine@sha256:" + "0" * 64
MISSING = "x.example/none:1"
IDLE = "print(os.environ['TOKEN'], flush=True)\ntell(os.getpid())\nsignal.pause()"
ENDLESS = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell(os.getpid())\nwhile True: signal.pause()"

CLIENT = """#!{python} -ISB
# A docker or podman without anything of its own: passes all to the daemon, prints its answers.
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
        return {"ID": f"id-of-{made.name}", "Names": made.name, "Labels": told, "State": made.state}
    return {"Id": f"id-of-{made.name}", "Names": [made.name], "Labels": made.labels, "State": made.state}


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
