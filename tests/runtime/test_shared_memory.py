"""Shared memory of ranks that were killed, with real supervisors and segments; of nobody else."""

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.processes import process
from sparkfleet.runtime.shared_memory import SHM, SharedMemory, remove_recorded, remove_segments

HOLDS = """
import mmap, os, signal, sys
mapped, opened, shared = sys.argv[1:]
for name in (mapped, shared):
    fd = os.open("/dev/shm/" + name, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 4096)
    held = mmap.mmap(fd, 4096)
    os.close(fd)
    globals()[name[:3]] = held
kept = os.open("/dev/shm/" + opened, os.O_RDWR | os.O_CREAT, 0o600)
signal.pause()
"""


@pytest.fixture
def names():
    """Names of segments; removed with the test."""
    made = [f"{kind}-{uuid.uuid4().hex}" for kind in ("map", "ope", "sha")]
    yield made
    for name in made:
        (SHM / name).unlink(missing_ok=True)


async def until(condition):
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.05)
    return False


@pytest.fixture
async def holding(runtime, running, make_spec, names):
    """A rank that holds three segments, one of them together with this process; its record is written."""
    spec = make_spec((sys.executable, "-c", HOLDS, *names))
    rank = await running(spec)
    record = RankFiles.of(runtime._run_dir, str(spec.id)).shared
    assert await until(lambda: record.exists() and set(json.loads(record.read_text())) == set(names))
    descriptor = os.open(SHM / names[2], os.O_RDWR)
    yield rank
    os.close(descriptor)


@pytest.mark.parametrize("killed", ["engine", "supervisor", "none"])
async def test_what_a_rank_leaves_is_removed_whatever_is_killed(holding, names, killed):
    pid = (await holding.status()).pid
    if killed == "engine":
        os.kill(pid, signal.SIGKILL)
    if killed == "supervisor":
        os.kill(process(pid).parent, signal.SIGKILL)
    ended = await (holding.stop() if killed == "none" else holding.wait())
    assert ended.exit_code != 0
    assert [(SHM / name).exists() for name in names] == [False, False, True], (
        "the last is used by another process"
    )


def test_only_the_same_file_is_removed(names):
    path = SHM / names[0]
    path.write_text("of somebody else")
    inode = path.stat().st_ino
    assert remove_segments({names[0]: inode + 1}) == ()
    assert path.exists()
    assert remove_segments({names[0]: inode}) == (names[0],)


@pytest.mark.parametrize("text", ["", "[]", '{"../../etc/passwd": 1}', '{"name": "inode"}', "{"])
def test_a_record_that_is_garbage_removes_nothing(tmp_path, text):
    record = tmp_path / "rank.shm"
    record.write_text(text)
    assert remove_recorded(record) == ()
    assert Path("/etc/passwd").exists()


def test_what_was_there_before_and_the_locks_of_podman_are_not_the_ranks(tmp_path, names):
    before, locks, own = SHM / names[0], SHM / f"libpod_rootless_lock_{names[1]}", SHM / names[2]
    before.write_text("of another rank")
    shared = SharedMemory(tmp_path / "rank.shm")
    try:
        locks.write_text("of all containers")
        own.write_text("its own")
        with before.open(), locks.open(), own.open():
            shared.look([os.getpid()])
        assert json.loads((tmp_path / "rank.shm").read_text()).keys() == {names[2]}
        assert remove_segments({locks.name: locks.stat().st_ino}) == (), "from a record of an older release"
        assert shared.remove() == (names[2],)
        assert before.exists()
        assert locks.exists()
    finally:
        locks.unlink(missing_ok=True)
