"""Containers that a killed supervisor or client leaves, removed by a container tool whose daemon is the test."""

from __future__ import annotations

import os
import signal

from container_daemon import ENDLESS, IDLE, both, ours
from container_values import name_of, supervisor_of

from sparkfleet.runtime import process_runtime as process_module
from sparkfleet.runtime.base import Phase
from sparkfleet.runtime.containers import orphan_containers
from sparkfleet.runtime.process_runtime import ProcessRuntime
from sparkfleet.runtime.processes import process


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


@both
async def test_a_container_of_a_later_run_is_spared(daemon, runtime, herald, in_container, tool):
    first, later = [in_container(herald.script(IDLE), rank=rank) for rank in range(2)]
    supervisors = []
    for spec in (first, later):
        last = await runtime.start(spec)
        supervisors.append(supervisor_of(last))
        await herald.hear_pid()
    for one in supervisors:
        os.kill(one, signal.SIGKILL)
    assert f"container {name_of(first)} ({tool})" in await runtime.sweep(frozenset(), last.started_at)
    assert {*daemon.made} == {name_of(later)}
    assert (tool, "rm", "--force", "--volumes", f"id-of-{name_of(first)}") in daemon.calls


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
