"""A repeated message is written once, even if several tasks record it while others wait for events."""

import asyncio
import sqlite3

import pytest

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.store import Store
from sparkfleet.units import moment_words


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "s.db")
    yield store
    store.close()


async def test_what_is_said_at_once_is_written_once(store):
    journal = EventLog(store)
    async with journal._written:  # somebody who waits for events is being told
        saying = [
            asyncio.create_task(journal.record_once("a", 1, "a/g1/0", "progress", "x")) for _ in range(3)
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*saying)
    assert [event.message for event in store.events.read()] == ["x"]


async def test_what_could_not_be_written_is_written_when_it_is_said_again(store, monkeypatch):
    journal = EventLog(store)

    def full(*event):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(store.events, "record", full)
        with pytest.raises(sqlite3.OperationalError):
            await journal.record_once("a", 1, "a", "waits", "x")
    await journal.record_once("a", 1, "a", "waits", "x")
    assert [event.message for event in store.events.read()] == ["x"]


async def test_a_reboot_has_its_time(tmp_path):
    store = Store(tmp_path / "s.db", clock=lambda: 1_000_000.0)
    journal = EventLog(store)
    await journal.record_boot("a", "first", 5.0)
    await journal.record_boot("a", "second", 140.4)
    (event,) = store.events.read()
    assert (event.subject, event.kind) == ("a", "node")
    assert event.message == f"a rebooted at {moment_words(999_859.6)}, 140 s ago: its engines ended with it"
    store.close()
