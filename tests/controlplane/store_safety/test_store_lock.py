"""Of two processes that would work with the same store one has it, until it ends in whatever way."""

import subprocess
import sys

import pytest

from sparkfleet.controlplane.store_safety import store_lock
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault
from sparkfleet.controlplane.store_safety.store_lock import StoreLock

HOLD = """
import sys, time
from pathlib import Path
from sparkfleet.controlplane.store_safety.store_lock import StoreLock
StoreLock(Path(sys.argv[1])).take()
print("has it", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that has the lock of `tmp_path`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "has it\n"
        yield process
        process.kill()


def test_a_store_that_another_process_works_with_is_refused_with_that_process_until_it_is_killed(
    other, tmp_path
):
    lock = StoreLock(tmp_path)
    with pytest.raises(StoreError) as caught:
        lock.take()
    assert caught.value.fault is StoreFault.IN_USE
    assert caught.value.what == f"Another process ({other.pid}) works with the store in {tmp_path}."
    assert f"`kill {other.pid}`" in caught.value.do
    other.kill()
    other.wait()
    lock.take()
    lock.release()


def test_who_has_it_may_take_it_again_and_gives_it_back(tmp_path):
    one, two = StoreLock(tmp_path), StoreLock(tmp_path)
    one.take()
    one.take()
    with pytest.raises(StoreError):
        two.take()
    one.release()
    one.release()
    two.take()
    two.release()


def test_a_kernel_that_lists_no_locks_leaves_the_process_out(tmp_path, monkeypatch):
    monkeypatch.setattr(store_lock, "LOCKS", tmp_path / "none")
    one, two = StoreLock(tmp_path), StoreLock(tmp_path)
    one.take()
    with pytest.raises(StoreError, match=r"^Another process works with the store in") as caught:
        two.take()
    assert f"`fuser -v {tmp_path}`" in caught.value.do
    one.release()


@pytest.mark.parametrize("trouble", ["no directory", "no such locks"])
def test_without_a_lock_the_store_is_used_all_the_same(trouble, tmp_path, monkeypatch):
    """A file system without such locks, or the cause that opening the store names, is no reason to do nothing."""

    def without(*_):
        raise OSError(95, "Operation not supported")

    if trouble == "no such locks":
        monkeypatch.setattr(store_lock.fcntl, "flock", without)
    lock = StoreLock(tmp_path if trouble == "no such locks" else tmp_path / "none")
    lock.take()
    lock.release()
