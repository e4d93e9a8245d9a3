"""Usage on disk: a killed gateway loses nothing that was written, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.controlplane.state.store import Store
from sparkfleet.gateway.accounting import usage_journal
from sparkfleet.gateway.accounting.usage_counter import UsageCounter
from sparkfleet.gateway.accounting.usage_journal import UsageJournal, read_left
from sparkfleet.gateway.engine.usage import Usage
from sparkfleet.gateway.report import FormerUsage, GatewayReport, KeyUsage

KILLED = """
import asyncio, sys
from pathlib import Path
from sparkfleet.gateway.engine.usage import Usage
from sparkfleet.gateway.accounting.usage_counter import UsageCounter
from sparkfleet.gateway.accounting.usage_journal import UsageJournal

async def main():
    counter = UsageCounter()
    journal = UsageJournal(Path(sys.argv[1]), "killed", counter)
    asyncio.create_task(journal.keep())
    for _ in range(3):
        counter.add("ci", "tiny", Usage(10, 2))
    while not list(Path(sys.argv[1]).glob("*.json")):
        await asyncio.sleep(0.01)
    print("written", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def report(replica: str, counter: UsageCounter, journal: UsageJournal) -> GatewayReport:
    return GatewayReport(
        replica=replica,
        url="http://a:1",
        metrics_url="http://a:2",
        at=0.0,
        usage=counter.totals(),
        former=journal.former,
    )


def test_what_a_killed_process_had_counted_is_read_by_the_next_one_and_stored_once(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"written\n"
        program.send_signal(signal.SIGKILL)
    counter = UsageCounter()
    journal = UsageJournal(tmp_path, "next", counter)
    usage = KeyUsage(key="ci", model="tiny", requests=3, input=30, output=6)
    assert journal.former == (FormerUsage(replica="killed", usage=(usage,)),)
    with_store = Store(Path(":memory:"))
    with_store.usage.add("killed", [usage.model_copy(update={"requests": 1, "input": 10, "output": 2})])
    for _ in range(2):  # the first answer was lost, and it reports again
        for one in journal.former:
            with_store.usage.add(one.replica, one.usage)
    assert [(row.requests, row.input, row.output) for row in with_store.usage.last_days(1)] == [(3, 30, 6)]
    with_store.close()
    journal.drop_stored(report("next", counter, journal))
    assert (journal.former, list(tmp_path.iterdir())) == ((), [])


async def test_the_file_of_a_gateway_that_counts_on_stays(tmp_path: Path) -> None:
    """Two run side by side for seconds while one is replaced: what the former counted since its file was read was lost."""
    former = UsageCounter()
    its_journal = UsageJournal(tmp_path, "former", former)
    former.add("ci", "tiny", Usage(10, 2))
    await its_journal.flush()
    counter = UsageCounter()
    journal = UsageJournal(tmp_path, "next", counter)
    stored = report("next", counter, journal)
    former.add("ci", "tiny", Usage(10, 2))
    await its_journal.flush()
    journal.drop_stored(stored)
    (left,) = journal.former
    assert [one.requests for one in left.usage] == [2]
    journal.drop_stored(report("next", counter, journal))
    assert (journal.former, list(tmp_path.iterdir())) == ((), [])


async def test_the_file_has_what_is_not_stored_and_goes_when_everything_is(tmp_path: Path) -> None:
    counter = UsageCounter()
    journal = UsageJournal(tmp_path, "one", counter)
    counter.add("ci", "tiny", Usage(10, 2))
    counter.add("laptop", "tiny", Usage(1, 1))
    told = report("one", counter, journal)
    counter.add("laptop", "tiny", Usage(1, 1))  # while the controller stores the report
    journal.drop_stored(told)
    await journal.flush()
    ((file, left),) = read_left(tmp_path)[0].items()
    assert file.stat().st_mode & 0o777 == 0o600
    assert left == FormerUsage(
        replica="one", usage=(KeyUsage(key="laptop", model="tiny", requests=2, input=2, output=2),)
    )
    journal.drop_stored(report("one", counter, journal))
    await journal.flush()
    assert list(tmp_path.iterdir()) == []


async def test_many_requests_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []
    monkeypatch.setattr(usage_journal, "write_atomically", lambda *given: writes.append(given))
    monkeypatch.setattr(usage_journal, "WRITE_S", 3600.0)
    counter = UsageCounter()
    journal = UsageJournal(tmp_path, "one", counter)
    keeping = asyncio.create_task(journal.keep())
    for _ in range(1000):
        counter.add("ci", "tiny", Usage(10, 2))
    while not writes:
        await asyncio.sleep(0.001)
    for _ in range(1000):
        counter.add("ci", "tiny", Usage(10, 2))
        await asyncio.sleep(0)
    keeping.cancel()
    assert len(writes) == 1


async def test_a_disk_without_room_stops_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    counter = UsageCounter()
    journal = UsageJournal(tmp_path, "one", counter)
    counter.add("ci", "tiny", Usage(10, 2))
    with monkeypatch.context() as patch:
        patch.setattr(usage_journal, "write_atomically", full)
        await journal.flush()
    assert "No space left" in caplog.text
    await journal.flush()
    assert len(read_left(tmp_path)[0]) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"replica": "a"}', b"\xff", b"x" * 5_000_000])
def test_a_foreign_file_is_named_and_stays(tmp_path: Path, content: bytes) -> None:
    foreign = tmp_path / "notes.json"
    foreign.write_bytes(content)
    journal = UsageJournal(tmp_path, "one", UsageCounter())
    assert journal.former == ()
    assert str(foreign) in journal.trouble
    assert "it is none of a gateway" in journal.trouble
    assert foreign.exists()


def test_a_file_whose_replica_the_store_may_have_forgotten_is_named_and_not_counted(tmp_path: Path) -> None:
    left = tmp_path / "left.json"
    left.write_text(FormerUsage(replica="g1", usage=()).model_dump_json())
    assert list(read_left(tmp_path)[0]) == [left]
    then = left.stat().st_mtime - usage_journal.OLDEST_DAYS * 86400 - 1
    os.utime(left, (then, then))
    found, trouble = read_left(tmp_path)
    assert found == {}
    assert f"{left} cannot be used (it is older than 30 days)" in trouble


def test_links_pipes_and_unreadable_files_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    (tmp_path / "directory.json").mkdir()
    killed, under_way = tmp_path / ".one.json.00000000", tmp_path / ".two.json.00000000"
    for part in (killed, under_way):
        part.write_text("half of a wri")
    os.utime(killed, (0, 0))
    found, trouble = read_left(tmp_path)
    assert found == {}
    assert all(name in trouble for name in ("pipe.json", "link.json", "directory.json"))
    assert (killed.exists(), under_way.exists()) == (False, True), "a replica that runs may be writing it"
    assert read_left(tmp_path / "none") == ({}, "")


@given(st.binary(max_size=200))
def test_no_content_of_a_file_is_fatal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("usage")
    (directory / "a.json").write_bytes(content)
    found, trouble = read_left(directory)
    assert bool(found) != bool(trouble)
