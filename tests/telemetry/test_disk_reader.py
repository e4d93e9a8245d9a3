import threading

import pytest

from sparkfleet.telemetry import disk_reader
from sparkfleet.telemetry.disk_reader import DiskReader
from sparkfleet.telemetry.node_readings import DiskSpace


async def test_the_disks_of_this_machine():
    disks = await DiskReader().read()
    assert 0 < disks["root"].free < disks["root"].total


async def test_a_disk_that_hangs_is_unknown_and_keeps_one_thread(monkeypatch):
    monkeypatch.setattr(disk_reader, "LIMIT_S", 0.05)
    goes_on, begun, found = threading.Event(), [], {"hub": DiskSpace(free=1, total=2)}

    def hangs():
        begun.append(1)
        goes_on.wait(20)
        return found

    monkeypatch.setattr(disk_reader, "read_disks", hangs)
    reader = DiskReader()
    assert [await reader.read(), await reader.read()] == [{}, {}]
    assert len(begun) == 1
    goes_on.set()
    monkeypatch.setattr(disk_reader, "LIMIT_S", 20.0)
    assert await reader.read() == found


async def test_an_error_ends_that_reading_only(monkeypatch):
    def fails():
        raise OSError("no such disk")

    reader = DiskReader()
    with monkeypatch.context() as patched:
        patched.setattr(disk_reader, "read_disks", fails)
        with pytest.raises(OSError, match="no such disk"):
            await reader.read()
    assert "root" in await reader.read()
