"""Ends of ranks under real supervisors: nothing is left, and the owner knows the reason."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from rank_processes import IDLE, WITH_ORPHAN, alive, supervisor_of

from sparkfleet.errors import NodeError
from sparkfleet.runtime import process_runtime as process_module
from sparkfleet.runtime.base import Phase
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import process


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
