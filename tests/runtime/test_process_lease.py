"""The owner of a rank, and the lease within which another one adopts it. Real supervisors; engines are small scripts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest
from rank_processes import IDLE, alive, supervisor_of

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import Phase
from sparkfleet.runtime.processes import process


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
        "from sparkfleet.runtime.process_runtime import ProcessRuntime, RankSpec\n"
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
