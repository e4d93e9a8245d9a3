"""Starts of ranks under real supervisors: once, with a clean environment, or an error that names the cause."""

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

import pytest
from rank_processes import IDLE, WITH_ORPHAN, alive, supervisor_of

from sparkfleet.errors import Cause, NodeError
from sparkfleet.runtime import process_runtime as process_module
from sparkfleet.runtime.base import Phase, RankId, RankStatus, Runtime
from sparkfleet.runtime.environment import FLEET_LABEL, RANK_LABEL
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import process


def test_is_a_runtime(tmp_path):
    runtime: Runtime = ProcessRuntime(tmp_path, "fleet")
    assert runtime


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
        "from sparkfleet.runtime.process_runtime import ProcessRuntime, RankSpec\n"
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


async def test_a_supervisor_bounds_what_its_rank_keeps_on_the_disk(
    runtime, running, herald, make_spec, tmp_path
):
    key = tmp_path / "kv" / "qwen" / "key"
    blocks = [key / "m_r0" / "000" / f"0{n}_g0" / f"{n}.bin" for n in range(4)]
    for age, path in enumerate(reversed(blocks)):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(8 << 10))
        os.utime(path, (1e9 - age, 1e9 - age))
    former = tmp_path / "kv" / "qwen" / "former"
    former.mkdir()
    rank = await running(make_spec(herald.script(IDLE), kv_files={"path": str(key), "limit_bytes": 30 << 10}))
    async with asyncio.timeout(10):
        while blocks[0].exists() or former.exists():
            await asyncio.sleep(0.05)
    assert [path.exists() for path in blocks] == [False, True, True, True]
    assert (await rank.stop()).phase is Phase.EXITED
    assert blocks[1].exists(), "the next start finds it"


async def test_without_its_directory_for_kv_a_rank_ends_with_the_reason(
    runtime, running, herald, make_spec, tmp_path
):
    (tmp_path / "kv").touch()
    files = {"path": str(tmp_path / "kv" / "qwen" / "key"), "limit_bytes": 1}
    rank = await running(make_spec(herald.script(IDLE), kv_files=files))
    end = await rank.wait()
    assert end.phase is Phase.EXITED
    assert "its directory for KV on the disk cannot be started" in end.reason
