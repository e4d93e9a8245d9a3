"""Real supervisors, real processes, and a container tool whose daemon is the test: both tools, by the same argv."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from container_daemon import ENDLESS, IDLE, IMAGE, MISSING, SECRET, both
from container_values import name_of

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import Phase
from sparkfleet.runtime.containers import container as container_module
from sparkfleet.runtime.containers.container import Container, ContainerExit, run_argv
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL, labels
from sparkfleet.runtime.exit_codes import is_out_of_memory, is_tool_lost
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import process

# A life


@both
async def test_a_life(daemon, runtime, running, herald, in_container, tool):
    spec = in_container(herald.script(IDLE), grace_s=2.5)
    rank = await running(spec)
    pid = await herald.hear_pid()
    made = daemon.made[name_of(spec)]
    began = repr((await rank.status()).started_at)
    own = {**labels(runtime._fleet, str(spec.id)), "SPARKFLEET_RUN": began}
    assert made.env == {"A": "1", "TOKEN": SECRET, "SPT_NOENV": "1", **own}
    assert made.labels["sparkfleet.run"] == began
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
    assert run_argv(("docker", "run", "--rm", "--name", "n", "image", "--rm"), tmp_path, 7.5) == (
        "docker", "run", "--cidfile", str(tmp_path), "--label", "sparkfleet.run=7.5",
        "--env", FLEET_LABEL, "--env", RANK_LABEL, "--env", "SPARKFLEET_RUN", "--env", "SPT_NOENV",
        "--oom-score-adj", "500",
        "--name", "n", "image", "--rm",
    )  # fmt: skip
