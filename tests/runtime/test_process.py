"""Real supervisors and real processes; engines are small scripts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from sparkfleet.errors import Cause, NodeError
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.runtime import process as process_module
from sparkfleet.runtime.base import Phase, RankId, RankStatus, Runtime
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL, labels
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.ports import free_port
from sparkfleet.runtime.process import ProcessRuntime
from sparkfleet.runtime.processes import labelled, process

IDLE = "tell(os.getpid())\nsignal.pause()"
WITH_ORPHAN = "orphan(stubborn)\nsignal.pause()"


def alive(runtime: ProcessRuntime, rank_id: RankId) -> list[str]:
    """Command lines of all that the rank has running."""
    return [p.command for p in labelled(labels(runtime._fleet, str(rank_id)))]


def supervisor_of(pid: int) -> int:
    """Parent of the engine."""
    found = process(pid)
    assert found
    return found.parent


def test_is_a_runtime(tmp_path):
    runtime: Runtime = ProcessRuntime(tmp_path, "fleet")
    assert runtime


# A life


async def test_start_own_stop(runtime, herald, make_spec, ended):
    spec = make_spec(herald.script(IDLE))
    started = await runtime.start(spec)
    assert (started.phase, started.owned, started.exit_code) == (Phase.RUNNING, False, None)
    assert (started.id, started.digest, started.port) == (spec.id, spec.digest, spec.port)
    assert await herald.hear_pid() == started.pid

    rank = await runtime.own(spec.id)
    assert (await rank.status()).owned
    assert await runtime.list() == (await rank.status(),)

    supervisor = supervisor_of(started.pid)
    stopped = await rank.stop()
    assert (stopped.phase, stopped.exit_code) == (Phase.EXITED, -signal.SIGTERM)
    assert stopped.reason == "stopped: by its owner's request"
    assert process(started.pid) is None
    assert await rank.wait() == await rank.status() == await rank.stop() == stopped
    await rank.close()
    await ended(supervisor)
    assert alive(runtime, spec.id) == []
    assert await runtime.list() == ()
    assert await runtime.list(ended_s=60) == (stopped,)
    os.utime(RankFiles.of(runtime._run_dir, str(spec.id)).last, (time.time() - 61,) * 2)
    assert await runtime.list(ended_s=60) == ()
    assert await runtime.own(spec.id) is None
    assert await runtime.post_mortem(spec.id) == stopped


async def test_the_supervisor_is_in_nobodys_session(runtime, herald, make_spec):
    started = await runtime.start(make_spec(herald.script(IDLE)))
    supervisor = process(supervisor_of(started.pid))
    engine = process(started.pid)
    assert supervisor.session == supervisor.group == supervisor.pid != os.getsid(0)
    assert supervisor.parent != os.getpid()
    assert engine.session == engine.group == engine.pid


async def test_an_engine_gets_a_clean_environment_and_its_labels(runtime, herald, make_spec, monkeypatch):
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "HF_TOKEN"):
        monkeypatch.setenv(name, "of the actor")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    body = "import json\ntell(json.dumps(dict(os.environ), separators=(',', ':')))\nsignal.pause()"
    spec = make_spec(herald.script(body), env=(("A", "1"),), secret_env=(("TOKEN", "s3cret-token"),))
    await runtime.start(spec)
    found = json.loads(" ".join(await herald.hear()))
    assert {"RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "HF_TOKEN"}.isdisjoint(found)
    assert (found["A"], found["TOKEN"], found["XDG_CACHE_HOME"]) == ("1", "s3cret-token", "/cache")
    assert (found["PATH"], found[RANK_LABEL]) == (os.environ["PATH"], "home/qwen/g1/0/0")
    assert (found[FLEET_LABEL], found["SPT_NOENV"]) == (runtime._fleet, "1")


async def test_an_engine_inherits_no_descriptor(runtime, herald, make_spec):
    """Least of all the lock: an orphan would hold it for good."""
    await runtime.start(
        make_spec(herald.script("tell(*sorted(os.listdir('/proc/self/fd')))\nsignal.pause()"))
    )
    assert await herald.hear() == ["0", "1", "2", "3"], "3 is the directory that is being listed"


async def test_the_kernel_kills_the_engine_before_others(runtime, herald, make_spec):
    started = await runtime.start(make_spec(herald.script(IDLE)))
    await herald.hear()
    scores = [Path(f"/proc/{p}/oom_score_adj").read_text() for p in (started.pid, supervisor_of(started.pid))]
    assert scores == ["500\n", "0\n"]


async def test_an_engine_ignores_no_signal_because_its_starter_did(runtime, herald, make_spec):
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        await runtime.start(
            make_spec(herald.script("tell(signal.getsignal(signal.SIGUSR1).name)\nsignal.pause()"))
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert await herald.hear() == ["SIG_DFL"]


def test_a_life_on_uvloop(tmp_path, make_spec):
    """The loop of Ray Serve's replicas."""
    uvloop = pytest.importorskip("uvloop")
    runtime = ProcessRuntime(tmp_path / "run", fleet=f"uvloop {tmp_path}")

    async def live() -> RankStatus:
        started = await runtime.start(make_spec(("sleep", "60")))
        rank = await runtime.own(started.id)
        stopped = await rank.stop()
        await runtime.sweep(frozenset())
        return stopped

    assert uvloop.run(live()).reason == "stopped: by its owner's request"


# Starting


async def test_start_is_idempotent(runtime, herald, make_spec):
    spec = make_spec(herald.script(IDLE))
    first = await runtime.start(spec)
    assert await runtime.start(spec) == first


async def test_another_port_is_no_other_command(runtime, herald, make_spec):
    idle = herald.script(IDLE)
    first = await runtime.start(make_spec((*idle, "--port", "20001"), port=20_001, digest="one"))
    assert await runtime.start(make_spec((*idle, "--port", "20002"), port=20_002, digest="one")) == first


async def test_another_digest_is_refused(runtime, herald, make_spec):
    first = await runtime.start(make_spec(herald.script(IDLE)))
    with pytest.raises(NodeError, match="home/qwen/g1/0/0 already runs, with another command"):
        await runtime.start(make_spec(herald.script("signal.pause()")))
    assert (await runtime.list())[0].pid == first.pid


async def test_concurrent_starts_are_one(tmp_path, runtime, herald, make_spec):
    spec = make_spec(herald.script(IDLE))
    others = [ProcessRuntime(tmp_path / "run", runtime._fleet) for _ in range(3)]
    started = await asyncio.gather(*(r.start(spec) for r in (runtime, *others)))
    assert len({status.pid for status in started}) == 1
    assert await herald.hear_pid() == started[0].pid


async def test_starts_in_two_processes_are_one(tmp_path, runtime, herald, make_spec):
    spec = make_spec(herald.script(IDLE))
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from sparkfleet.runtime.process import ProcessRuntime, RankSpec\n"
        "spec = RankSpec.model_validate_json(Path(sys.argv[3]).read_text())\n"
        "print(asyncio.run(ProcessRuntime(Path(sys.argv[1]), sys.argv[2]).start(spec)).pid)\n"
    )
    argv = (sys.executable, "-c", script, str(tmp_path / "run"), runtime._fleet, str(tmp_path / "spec.json"))
    starters = [await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE) for _ in range(2)]
    pids = [(await s.communicate())[0] for s in starters]
    assert pids[0] == pids[1] == f"{await herald.hear_pid()}\n".encode()


async def test_a_start_that_is_cancelled_leaves_no_lock(runtime, herald, make_spec, monkeypatch):
    execute = process_module.execute

    async def interrupted(*args, **kwargs):
        asyncio.current_task().cancel()
        return await execute(*args, **kwargs)

    spec = make_spec(herald.script(IDLE))
    monkeypatch.setattr(process_module, "execute", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(runtime.start(spec))
    monkeypatch.setattr(process_module, "execute", execute)
    assert (await runtime.start(spec)).phase is Phase.RUNNING
    assert len(alive(runtime, spec.id)) == 2, "a supervisor and an engine"


async def test_a_full_disk_is_a_node_error(runtime, make_spec, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process_module, "write_atomically", full)
    with pytest.raises(NodeError, match=r"home/qwen/g1/0/0 cannot be started: .*No space left"):
        await runtime.start(make_spec(("true",)))


async def test_a_program_that_does_not_exist(runtime, make_spec):
    status = await runtime.start(make_spec(("no-such-engine", "serve")))
    assert (status.phase, status.exit_code) == (Phase.EXITED, 127)
    assert status.reason.startswith("no-such-engine cannot be started: ")
    assert await runtime.post_mortem(status.id) == status


async def test_nothing_to_run(runtime, make_spec):
    with pytest.raises(NodeError, match="argv is empty"):
        await runtime.start(make_spec(()))


async def test_a_supervisor_that_does_not_come_up_is_explained(runtime, make_spec, monkeypatch):
    broken = (sys.executable, "-c", "import os; os.wrong")
    monkeypatch.setattr(process_module, "_SUPERVISOR", broken)
    with pytest.raises(NodeError, match=r"did not start\nAttributeError: .*wrong") as refused:
        await runtime.start(make_spec(("true",), secret_env=(("TOKEN", "s3cret-token"),)))
    assert "s3cret" not in str(refused.value)
    assert [p.suffix for p in (runtime._run_dir).iterdir()] == [".lock"]


async def test_a_run_directory_deeper_than_a_socket_path_may_be(tmp_path, herald, make_spec):
    runtime = ProcessRuntime(tmp_path / ("d" * 100) / ("e" * 100), fleet=f"deep {tmp_path}")
    assert (await runtime.start(make_spec(herald.script(IDLE)))).phase is Phase.RUNNING
    assert await runtime.sweep(frozenset()) == ("rank home/qwen/g1/0/0",)


async def test_ids_that_are_no_file_names(runtime, running, herald, make_spec):
    odd = RankId(fleet="../../é" * 40, deployment="a b\n", generation=1, replica=0, rank=0)
    rank = await running(make_spec(herald.script(IDLE), id=odd))
    assert (await rank.stop()).id == odd


async def test_an_id_that_cannot_be_a_label(runtime, make_spec, rank_id):
    odd = rank_id.model_copy(update={"deployment": "a\0b"})
    with pytest.raises(NodeError, match="null byte"):
        await runtime.start(make_spec(("true",), id=odd))


async def test_a_log_that_cannot_be_written(tmp_path, runtime, make_spec):
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError, match=r"did not start\n.*/file"):
        await runtime.start(make_spec(("true",), log_path=str(tmp_path / "file" / "log")))


async def test_a_run_directory_that_cannot_be_used(tmp_path, make_spec):
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError, match="cannot be used"):
        await ProcessRuntime(tmp_path / "file", "fleet").start(make_spec(("true",)))


async def test_the_run_directory_and_the_socket_are_private(runtime, herald, make_spec, rank_id):
    runtime._run_dir.mkdir(mode=0o755)
    await runtime.start(make_spec(herald.script(IDLE)))
    files = RankFiles.of(runtime._run_dir, str(rank_id))
    assert stat.S_IMODE(runtime._run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(files.socket.stat().st_mode) == 0o600


# Owning


async def test_there_is_one_owner_at_a_time(runtime, running, herald, make_spec, rank_id):
    rank = await running(make_spec(herald.script(IDLE)))
    assert await runtime.own(rank_id) is None
    await rank.close()
    second = await runtime.own(rank_id)
    assert second
    with pytest.raises(NodeError, match="was released"):
        await rank.wait()
    await second.close()


async def test_a_rank_that_does_not_exist_cannot_be_owned(runtime, rank_id):
    assert await runtime.own(rank_id) is None
    assert await runtime.post_mortem(rank_id) is None


async def test_a_rank_is_adopted_within_its_lease(runtime, running, herald, make_spec):
    spec = make_spec(herald.script(IDLE), lease_s=10.0)
    rank = await running(spec)
    before = await rank.status()
    await rank.close()
    again = await runtime.own(spec.id)
    assert await again.status() == before
    await again.close()


async def test_a_rank_that_nobody_owns_ends(runtime, herald, make_spec, ended):
    started = await runtime.start(make_spec(herald.script(IDLE), lease_s=1.5))
    supervisor = supervisor_of(started.pid)
    await ended(started.pid)
    await ended(supervisor)
    assert (await runtime.post_mortem(started.id)).reason == "stopped: no owner for 1.5 s"
    assert alive(runtime, started.id) == []


async def test_a_supervisor_that_was_stopped_while_its_lease_ran_out_gives_an_owner_that_waits_its_turn(
    runtime, herald, make_spec
):
    started = await runtime.start(make_spec(herald.script(IDLE), lease_s=1.5))
    supervisor = supervisor_of(started.pid)
    os.kill(supervisor, signal.SIGSTOP)
    owning = asyncio.create_task(runtime.own(started.id))
    await asyncio.sleep(3.0)
    os.kill(supervisor, signal.SIGCONT)
    rank = await owning
    assert rank is not None
    assert (await rank.status()).phase is Phase.RUNNING
    await rank.stop()
    await rank.close()


async def test_a_rank_does_not_start_while_another_program_listens_on_its_declared_port(
    runtime, herald, make_spec
):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        spec = make_spec(herald.script(IDLE), declared_port=port)
        with pytest.raises(
            NodeError, match=f"port {port} of 127.0.0.1, .* is taken by another program"
        ) as caught:
            await runtime.start(spec)
        assert caught.value.because is Cause.PORT
        assert await runtime.list() == ()
    assert (await runtime.start(spec)).phase is Phase.RUNNING
    assert await runtime.start(spec)  # its own listener is no stranger: it is adopted


async def test_a_rank_that_is_owned_outlasts_its_lease(runtime, running, herald, make_spec):
    rank = await running(make_spec(herald.script(IDLE), lease_s=1.5))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rank.wait(), 2.0)
    assert (await rank.status()).phase is Phase.RUNNING


async def test_a_rank_ends_within_its_lease_after_its_owner_was_killed(
    tmp_path, runtime, herald, make_spec, ended
):
    spec = make_spec(herald.script(IDLE), lease_s=3.0)
    owner = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from sparkfleet.runtime.process import ProcessRuntime, RankSpec\n"
        "async def main():\n"
        "    spec = RankSpec.model_validate_json(sys.argv[3])\n"
        "    runtime = ProcessRuntime(Path(sys.argv[1]), sys.argv[2])\n"
        "    status = await runtime.start(spec)\n"
        "    rank = await runtime.own(spec.id)\n"
        "    print(status.pid, flush=True)\n"
        "    await rank.wait()\n"
        "asyncio.run(main())\n"
    )
    argv = (sys.executable, "-c", owner, str(tmp_path / "run"), runtime._fleet, spec.model_dump_json())
    starter = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    pid = int(await starter.stdout.readline())
    assert (await runtime.list())[0].owned
    os.killpg(starter.pid, signal.SIGKILL)
    await starter.communicate()
    assert process(pid), "the rank outlives its starter's process group"
    await ended(pid)


# Ending


async def test_nothing_is_left_after_stop(runtime, running, herald, make_spec):
    rank = await running(make_spec(herald.script(WITH_ORPHAN)))
    orphan = await herald.hear_pid()
    await rank.stop()
    assert process(orphan) is None
    await rank.close()


async def test_what_has_shed_its_label_is_found_by_descent(runtime, running, herald, make_spec):
    body = (
        "orphan(lambda: os.execve(sys.executable, [sys.executable, '-S', '-c', {!r}], {{}}))\nsignal.pause()"
    )
    rank = await running(make_spec(herald.script(body.format(herald.script("stubborn()")[-1]))))
    orphan = await herald.hear_pid()
    assert all(str(orphan) not in line for line in alive(runtime, rank._last.id))
    await rank.stop()
    assert process(orphan) is None


async def test_an_engine_that_ignores_sigterm_is_killed(runtime, running, herald, make_spec):
    rank = await running(make_spec(herald.script("stubborn()")))
    await herald.hear()
    assert (await rank.stop()).exit_code == -signal.SIGKILL


async def test_an_engine_may_take_its_time_to_end(runtime, running, herald, make_spec):
    body = (
        "def end(*_):\n    print('saved', flush=True)\n    sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, end)\ntell('ready')\nsignal.pause()"
    )
    spec = make_spec(herald.script(body), grace_s=20.0)
    rank = await running(spec)
    await herald.hear()
    assert (await rank.stop()).exit_code == 5
    assert "saved\n" in Path(spec.log_path).read_text()


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("print('last words')", 0, "should not end"),
        ("print('last words'); sys.exit(3)", 3, "exited with code 3"),
        ("print('last words'); sys.stdout.flush(); os.kill(os.getpid(), 9)", -9, "ended by SIGKILL"),
        ("print('last words'); sys.stdout.flush(); os.kill(os.getpid(), 11)", -11, "invalid memory access"),
    ],
)
async def test_the_owner_is_told_how_an_engine_ended(runtime, running, herald, make_spec, body, code, words):
    spec = make_spec(herald.script(f"tell('up')\nsys.stdin.read()\n{body}"))
    rank = await running(spec)
    end = await rank.wait()
    assert (end.phase, end.exit_code) == (Phase.EXITED, code)
    first, *tail = end.reason.splitlines()
    assert first.startswith("the engine ")
    assert words in first
    assert tail[0] == f"last lines of {spec.log_path}:"
    assert "last words" in tail
    assert await runtime.post_mortem(spec.id) == end


async def test_what_outlives_the_engine_is_killed(running, herald, make_spec):
    rank = await running(make_spec(herald.script(WITH_ORPHAN)))
    orphan = await herald.hear_pid()
    os.kill((await rank.status()).pid, signal.SIGKILL)
    assert (await rank.wait()).exit_code == -signal.SIGKILL
    assert process(orphan) is None


async def test_an_owner_who_comes_late_is_told_too(runtime, herald, make_spec, ended):
    started = await runtime.start(make_spec(herald.script("print('boom')\nsys.exit(4)")))
    await ended(started.pid)
    rank = await runtime.own(started.id)
    end = await rank.wait()
    assert end.exit_code == 4
    assert end.reason.endswith("boom")
    await rank.close()


async def test_a_rank_that_ended_starts_again_at_once(runtime, herald, make_spec, ended):
    spec = make_spec(herald.script("tell(os.getpid())\nsys.exit(1)"))
    first = await runtime.start(spec)
    await ended(first.pid)
    second = await runtime.start(spec)
    assert {first.pid, second.pid} == {await herald.hear_pid(), await herald.hear_pid()}
    assert first.pid != second.pid


async def test_a_rank_that_is_being_stopped_is_waited_for(runtime, running, herald, make_spec):
    spec = make_spec(herald.script("stubborn()"))
    rank = await running(spec)
    first = await herald.hear_pid()
    stopping = asyncio.create_task(rank.stop())
    second = await runtime.start(make_spec(herald.script(IDLE)))
    assert (await stopping).pid == first != second.pid
    assert process(first) is None


async def test_sigterm_to_the_supervisor_stops_the_rank(runtime, running, herald, make_spec):
    rank = await running(make_spec(herald.script(WITH_ORPHAN)))
    orphan = await herald.hear_pid()
    os.kill(supervisor_of((await rank.status()).pid), signal.SIGTERM)
    assert (await rank.wait()).reason == "stopped: its supervisor got SIGTERM"
    assert process(orphan) is None


async def test_nothing_is_left_after_the_supervisor_was_killed(runtime, running, herald, make_spec):
    spec = make_spec(herald.script(WITH_ORPHAN))
    rank = await running(spec)
    orphan, engine = await herald.hear_pid(), (await rank.status()).pid
    os.kill(supervisor_of(engine), signal.SIGKILL)
    end = await rank.wait()
    assert (end.phase, end.exit_code, end.owned) == (Phase.EXITED, -signal.SIGKILL, False)
    assert end.reason.startswith("its supervisor was killed")
    assert f"pid {orphan}" in end.reason
    assert process(engine) is None
    assert process(orphan) is None
    assert await runtime.post_mortem(spec.id) == end
    assert (await runtime.start(spec)).pid != engine


async def test_a_new_start_buries_what_a_killed_supervisor_left(runtime, herald, make_spec, ended):
    spec = make_spec(herald.script(WITH_ORPHAN))
    started = await runtime.start(spec)
    orphan, supervisor = await herald.hear_pid(), supervisor_of(started.pid)
    os.kill(supervisor, signal.SIGKILL)
    await ended(supervisor)
    assert process(orphan)
    assert await runtime.own(spec.id) is None
    assert await runtime.list() == ()
    again = await runtime.start(spec)
    assert again.phase is Phase.RUNNING
    assert process(orphan) is None


async def test_an_owner_leaves_a_rank_alone_that_somebody_has_started_again(
    runtime, herald, make_spec, ended
):
    spec = make_spec(herald.script(IDLE))
    first = await runtime.start(spec)
    supervisor = supervisor_of(first.pid)
    os.kill(supervisor, signal.SIGKILL)
    await ended(supervisor)
    second = await runtime.start(spec)
    assert (await runtime.bury(first)).exit_code == -signal.SIGKILL
    assert (await runtime.list())[0].pid == second.pid


async def test_a_supervisor_that_hangs_is_killed_by_stop(runtime, running, herald, make_spec, monkeypatch):
    monkeypatch.setattr(process_module, "_STOP_MARGIN_S", 0.1)
    rank = await running(make_spec(herald.script(WITH_ORPHAN)))
    orphan, engine = await herald.hear_pid(), (await rank.status()).pid
    os.kill(supervisor_of(engine), signal.SIGSTOP)
    assert (await rank.stop()).phase is Phase.EXITED
    assert process(engine) is None
    assert process(orphan) is None


async def test_a_supervisor_that_does_not_die_of_sigkill_is_an_error(
    runtime, running, herald, make_spec, monkeypatch
):
    """It waits in the kernel. The group that stopped it waited for ever, and was not replaced."""
    monkeypatch.setattr(process_module, "_STOP_MARGIN_S", 0.1)
    rank = await running(make_spec(herald.script(IDLE)))
    supervisor = supervisor_of((await rank.status()).pid)

    async def kill(id_):
        pass

    os.kill(supervisor, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(process_module, "_KILLED_S", 0.1)
        patched.setattr(runtime, "kill", kill)
        with pytest.raises(NodeError, match="not even by SIGKILL"):
            await rank.stop()
    assert (await rank.stop()).phase is Phase.EXITED


async def test_a_rank_whose_run_directory_was_removed_is_replaced(runtime, herald, make_spec, rank_id):
    spec = make_spec(herald.script(IDLE))
    first = await runtime.start(spec)
    for path in runtime._run_dir.iterdir():
        path.unlink()
    second = await runtime.start(spec)
    assert process(first.pid) is None
    assert (await runtime.list())[0].pid == second.pid


# Preparing


async def test_an_engine_starts_after_its_preparation(runtime, running, herald, make_spec):
    prepare = herald.script("tell('preparing')\nprint('prepared')")
    rank = await running(make_spec(herald.script(IDLE), prepare=prepare))
    assert await herald.hear() == ["preparing"]
    pid = await herald.hear_pid()
    status = await rank.status()
    assert (status.phase, status.pid) == (Phase.RUNNING, pid)


async def test_a_preparation_that_fails_is_the_end(runtime, running, herald, make_spec):
    spec = make_spec(herald.script(IDLE), prepare=herald.script("print('no disk')\nsys.exit(2)"))
    rank = await running(spec)
    end = await rank.wait()
    assert (end.phase, end.exit_code, end.pid) == (Phase.EXITED, 2, None)
    assert end.reason.startswith("its preparation exited with code 2")
    assert end.reason.endswith("no disk")


async def test_a_preparation_can_be_stopped(runtime, running, herald, make_spec):
    rank = await running(make_spec(herald.script(IDLE), prepare=herald.script(WITH_ORPHAN)))
    orphan = await herald.hear_pid()
    status = await rank.status()
    assert (status.phase, status.pid) == (Phase.PREPARING, None)
    assert (await rank.stop()).phase is Phase.EXITED
    assert process(orphan) is None


# Logs and secrets


async def test_the_log_is_private_and_rotated(runtime, running, herald, make_spec):
    body = "line = b'x' * 99 + b'\\n'\nfor _ in range(350): os.write(1, line * 1024)\ntell('done')\nsignal.pause()"
    spec = make_spec(herald.script(body))
    rank = await running(spec)
    await herald.hear()
    await rank.stop()
    logs = sorted(Path(spec.log_path).parent.iterdir())
    assert [p.name for p in logs] == ["rank.log", "rank.log.1", "rank.log.2"]
    assert all(0 < p.stat().st_size <= 10 << 20 for p in logs)
    assert {stat.S_IMODE(p.stat().st_mode) for p in logs} == {0o600}
    assert stat.S_IMODE(logs[0].parent.stat().st_mode) == 0o700


async def test_an_engine_cannot_write_the_supervisors_lines(running, herald, make_spec):
    """Its output before such a line would count as that of an earlier start, and a person would read a false reason."""
    fake = "[sparkfleet] 2026-11-20 18:00:00 running: something else"
    body = f"os.write(1, b'Traceback of this start\\n{fake}\\nafter it')\ntell('up')\nsys.stdin.read()\nsys.exit(3)"
    spec = make_spec(herald.script(body))
    rank = await running(spec)
    end = await rank.wait()
    log = Path(spec.log_path)
    ours = [line for line in log.read_text().splitlines() if line.startswith("[sparkfleet] ")]
    assert len(ours) == 2
    assert " running: " in ours[0]
    assert "the engine exited with code 3" in ours[1], "though the engine's last line has no end"
    of_this_start = rank_module._tail(log)
    assert of_this_start.startswith(
        "Traceback of this start\n[engine: sparkfleet] 2026-11-20 18:00:00 running: "
    )
    assert "\n[sparkfleet]" not in end.reason


async def test_secrets_stay_in_the_environment(runtime, running, herald, make_spec, rank_id):
    secret = "s3cret-token"
    body = "print(os.environ['TOKEN'], os.environ, flush=True)\ntell(os.getpid())\nsys.exit(len(sys.argv))"
    spec = make_spec(herald.script(body), secret_env=(("TOKEN", secret),))
    idle = make_spec(
        herald.script(IDLE), secret_env=spec.secret_env, id=rank_id.model_copy(update={"rank": 1})
    )
    started = await runtime.start(idle)
    lines = [Path(f"/proc/{p}/cmdline").read_bytes() for p in (started.pid, supervisor_of(started.pid))]
    rank = await running(spec)
    end = await rank.wait()
    assert end.reason.splitlines()[-1].startswith("*** environ(")
    told = [end.model_dump_json().encode(), started.model_dump_json().encode(), *lines]
    kept = [
        p.read_bytes()
        for p in (*runtime._run_dir.iterdir(), *Path(spec.log_path).parent.iterdir())
        if p.is_file()
    ]
    assert len(kept) >= 4
    assert not [text for text in (*told, *kept) if secret.encode() in text]


# Sweeping


async def test_sweep_kills_all_but_what_is_kept(runtime, herald, make_spec, rank_id, ended):
    ids = [rank_id.model_copy(update={"rank": i}) for i in range(3)]
    kept, unwanted, orphaned = [
        make_spec(herald.script(WITH_ORPHAN), id=i, log_path=f"{runtime._run_dir}/l{i.rank}") for i in ids
    ]
    statuses, orphans = [], []
    for spec in (kept, unwanted, orphaned):
        statuses.append(await runtime.start(spec))
        orphans.append(await herald.hear_pid())
    lost = supervisor_of(statuses[2].pid)
    os.kill(lost, signal.SIGKILL)
    await ended(lost)

    killed = await runtime.sweep(frozenset({kept.id}))
    assert f"rank {unwanted.id}" in killed
    assert any(f"pid {orphans[2]} " in words for words in killed)
    assert [s.id for s in await runtime.list()] == [kept.id]
    assert [bool(process(p)) for p in orphans] == [True, False, False]
    assert {p.stem for p in runtime._run_dir.glob("*.lock")} == {
        RankFiles.of(runtime._run_dir, str(kept.id)).name
    }
    assert await runtime.sweep(frozenset({kept.id})) == ()


async def test_sweep_leaves_other_fleets_alone(tmp_path, runtime, herald, make_spec):
    other = ProcessRuntime(tmp_path / "other", fleet=f"other {tmp_path}")
    theirs = await other.start(make_spec(herald.script(IDLE)))
    assert await runtime.sweep(frozenset()) == ()
    assert process(theirs.pid)
    assert await other.sweep(frozenset()) == (f"rank {theirs.id}",)
    assert process(theirs.pid) is None


async def test_sweep_of_nothing(tmp_path):
    assert await ProcessRuntime(tmp_path / "none", f"none {tmp_path}").sweep(frozenset()) == ()


# What comes over the socket


def spoken(files: RankFiles, *lines: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as link, files.address() as path:
        link.connect(path)
        link.sendall(b"".join(lines))
        link.shutdown(socket.SHUT_WR)
        with link.makefile("rb") as answers:
            return [json.loads(line) for line in answers]


@pytest.mark.parametrize(
    "line", [b"\n", b"{\n", b"[]\n", b'{"op": 1}\n', b'{"op": "reboot"}\n', b"\xff\xfe\n"]
)
async def test_nonsense_is_refused_and_changes_nothing(runtime, herald, make_spec, rank_id, line):
    started = await runtime.start(make_spec(herald.script(IDLE)))
    files = RankFiles.of(runtime._run_dir, str(rank_id))
    refused, status = await asyncio.to_thread(spoken, files, line, b'{"op": "status"}\n')
    assert refused["ok"] is False
    assert status["status"]["pid"] == started.pid


async def test_an_endless_line_ends_the_connection_only(runtime, herald, make_spec, rank_id):
    started = await runtime.start(make_spec(herald.script(IDLE)))
    files = RankFiles.of(runtime._run_dir, str(rank_id))
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        await asyncio.to_thread(spoken, files, b"x" * 10_000_000)
    assert (await runtime.list())[0].pid == started.pid


# A forwarder before an engine that checks no token


SERVES = """
import http.server
class Open(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', '6')
        self.end_headers()
        self.wfile.write(b'secret')
    def log_message(self, *_): print(dict(self.headers), flush=True)
server = http.server.ThreadingHTTPServer(('127.0.0.1', %d), Open)
tell(os.getpid())
server.serve_forever()
"""


async def test_an_engine_without_a_token_is_behind_a_forwarder(
    tmp_path, runtime, running, herald, make_spec, ended
):
    host, port, target = "127.0.0.2", free_port("127.0.0.2"), free_port()
    forward = {"host": host, "target_port": target, "token": "tok-1234", "metrics_token": "met-1234"}
    rank = await running(make_spec(herald.script(SERVES % target), port=port, forward=forward))
    await herald.hear_pid()

    async def ask(**headers):
        async with aiohttp.request("GET", f"http://{host}:{port}/", headers=headers) as answer:
            return answer.status, await answer.text()

    assert (await ask())[0] == 401
    assert (await ask(authorization="Bearer met-1234"))[0] == 401
    assert await ask(authorization="Bearer tok-1234") == (200, "secret")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.3", target), timeout=1)
    await rank.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), timeout=1)
    log = (tmp_path / "logs" / "rank.log").read_text()
    assert "tok-1234" not in log


async def test_a_forwarder_whose_port_is_taken_is_an_exit_with_its_reason(runtime, herald, make_spec):
    with socket.create_server(("127.0.0.2", 0)) as taken:
        forward = {"host": "127.0.0.2", "target_port": 1, "token": "t" * 8, "metrics_token": "m" * 8}
        spec = make_spec(herald.script(IDLE), port=taken.getsockname()[1], forward=forward)
        started = await runtime.start(spec)
        assert started.phase is Phase.EXITED
        assert "127.0.0.2" in started.reason
