from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from sparkfleet.staging.agent import transfer
from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.transfer import Arrival, demand_room
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.lock_wait import alone
from sparkfleet.staging.locks import try_lock
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.storage_layout import DirectoryPlace, HubPlace

CONTENT = {f"f{i}": bytes([i]) * (i * 10) for i in range(6)}
FILES = tuple(
    File(path=path, size=len(content), digest=hashlib.sha256(content).hexdigest())
    for path, content in CONTENT.items()
)
MANIFEST = Manifest(kind="hub", name="o/n", commit="1" * 40, files=FILES)


class Notes(LineReporter):
    """Keeps the lines that are reported."""

    def __init__(self):
        super().__init__()
        self.said = []
        self.counts = []

    def _emit(self, **line):
        if line["event"] == "progress":
            self.counts.append((line["done_bytes"], line["total_bytes"]))
        else:
            self.said.append(line["text"])


@pytest.fixture
def notes():
    return Notes()


async def fill(file, part, stream):
    have = part.read_bytes() if part.exists() else b""
    part.write_bytes(have + CONTENT[file.path][len(have) :])


def arrival(place, notes, get=fill, **more):
    return Arrival(place, MANIFEST, get, notes, reserve_bytes=0, **more)


async def test_everything_arrives_is_counted_and_shown(tmp_path, notes):
    done = await arrival(HubPlace(tmp_path, "o/n"), notes).run("main")
    size = sum(map(len, CONTENT.values()))
    assert done.moved_bytes == size
    assert notes.counts[-1] == (size, size)
    snapshot = tmp_path / "models--o--n" / "snapshots" / ("1" * 40)
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == CONTENT


async def test_at_most_so_many_files_at_a_time_the_largest_first(tmp_path, notes):
    running, most, order = 0, 0, []

    async def get(file, part, stream):
        nonlocal running, most
        order.append(file.path)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await fill(file, part, stream)
        running -= 1

    await arrival(HubPlace(tmp_path, "o/n"), notes, get, streams=2).run("main")
    assert most == 2
    assert order[:2] == ["f5", "f4"]


async def test_a_failure_keeps_transferred_bytes(tmp_path, notes):
    place = HubPlace(tmp_path, "o/n")

    async def get(file, part, stream):
        if file.path == "f3":
            part.write_bytes(CONTENT["f3"][:7])
            raise StagingError("the cable was pulled")
        await fill(file, part, stream)

    with pytest.raises(ExceptionGroup) as failed:
        await arrival(place, notes, get, streams=1).run("main")
    assert failed.group_contains(StagingError, match="cable", depth=2)
    assert place.part(FILES[3]).read_bytes() == CONTENT["f3"][:7]
    assert place.final(FILES[5]).exists()
    done = await arrival(place, notes).run("main")
    assert done.moved_bytes == 30 - 7 + 20 + 10


async def test_bytes_that_never_match_are_an_error_and_thrown_away(tmp_path, notes):
    place = HubPlace(tmp_path, "o/n")

    async def get(file, part, stream):
        part.write_bytes(b"x" * file.size)

    with pytest.raises(ExceptionGroup) as failed:
        await arrival(place, notes, get, streams=1).run("main")
    assert failed.group_contains(StagingError, match="sha256", depth=2)
    assert not place.part(FILES[5]).exists()
    assert not place.final(FILES[5]).exists()


async def test_a_file_of_a_person_is_not_overwritten(tmp_path, notes):
    target = tmp_path / "model"
    target.mkdir()
    (target / "f5").write_bytes(b"mine")
    manifest = Manifest(kind="directory", name=str(target), files=FILES)
    with pytest.raises(ExceptionGroup) as failed:
        await Arrival(DirectoryPlace(target), manifest, fill, notes, reserve_bytes=0).run("main")
    assert failed.group_contains(StagingError, match="another size", depth=2)
    assert (target / "f5").read_bytes() == b"mine"


async def test_a_waiting_run_reports_it_and_finds_the_files(tmp_path, notes):
    place = HubPlace(tmp_path, "o/n")
    first, second = Notes(), Notes()
    calls = []

    async def get(file, part, stream):
        calls.append(file.path)
        await fill(file, part, stream)

    await asyncio.gather(arrival(place, first, get).run("main"), arrival(place, second, get).run("main"))
    assert sorted(calls) == sorted(CONTENT)
    assert any("waiting for that run" in text for text in first.said + second.said)


async def test_a_download_by_huggingface_hub_is_waited_for(tmp_path, notes):
    """It holds .locks/models--o--n/<digest>.lock by flock while it writes a blob."""
    place = HubPlace(tmp_path, "o/n")
    lock = tmp_path / ".locks" / "models--o--n" / f"{FILES[5].digest}.lock"
    waited = asyncio.Event()
    async with alone(lock, pytest.fail):
        work = asyncio.ensure_future(arrival(place, notes).run("main"))
        notes._emit = lambda **line: waited.set() if line["event"] == "note" else None
        async with asyncio.timeout(20):
            await waited.wait()
        place.final(FILES[5]).write_bytes(CONTENT["f5"])
    assert (await work).moved_bytes == sum(map(len, CONTENT.values())) - 50


def test_a_removed_lock_file_locks_no_process(tmp_path):
    path = tmp_path / "lock"
    first = try_lock(path)
    assert try_lock(path) is None
    path.unlink()
    assert try_lock(path) is not None
    assert first is not None


def test_room_counts_the_reserve(tmp_path):
    demand_room(tmp_path, 0, 1 << 60)  # nothing is needed
    with pytest.raises(StagingError, match="are needed") as refused:
        demand_room(tmp_path, 1, 1 << 60)
    assert "prune" in refused.value.do


@pytest.mark.parametrize("taken", [25, 50])
async def test_room_is_checked_again_before_each_file(taken, tmp_path, notes, monkeypatch):
    """Two transfers at once filled the disk: each was checked before its first byte only."""
    place, fetched = HubPlace(tmp_path, "o/n"), []
    free = sum(map(len, CONTENT.values())) + 50  # so much is kept in reserve

    async def get(file, part, stream):
        nonlocal free
        fetched.append(file.path)
        await fill(file, part, stream)
        free -= file.size + (taken if file.path == "f3" else 0)

    monkeypatch.setattr(transfer, "free_bytes", lambda _: free)
    run = Arrival(place, MANIFEST, get, notes, streams=1, reserve_bytes=50).run("main")
    if taken == 25:  # logs and caches
        await run
        return
    with pytest.raises(ExceptionGroup) as failed:
        await run
    assert failed.group_contains(StagingError, match="Something else fills the disk")
    assert fetched == ["f5", "f4", "f3"]
    assert place.final(FILES[3]).exists(), "transferred bytes are kept"


async def test_and_in_the_course_of_a_file(tmp_path, notes, monkeypatch):
    place, free = HubPlace(tmp_path, "o/n"), 1 << 40

    async def get(file, part, stream):
        nonlocal free
        part.write_bytes(b"x")
        free = 10
        await asyncio.sleep(60)

    monkeypatch.setattr(transfer, "free_bytes", lambda _: free)
    with pytest.raises(ExceptionGroup) as failed:
        await Arrival(place, MANIFEST, get, notes, streams=1, reserve_bytes=50).run("main")
    assert failed.group_contains(StagingError, match="Something else fills the disk")


async def test_a_file_is_on_the_disk_before_it_counts_as_whole(tmp_path, notes, monkeypatch):
    """After a power cut it was short under its final name: fetched from its beginning, or "another size" in a directory."""
    place, synced = HubPlace(tmp_path, "o/n"), []

    def fsync(number):
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")))

    monkeypatch.setattr(os, "fsync", fsync)
    await arrival(place, notes).run("main")
    assert {place.part(file) for file in FILES} <= set(synced)
