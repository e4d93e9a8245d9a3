"""Readings of a node: from a tree like a Spark's, and from this machine."""

import os
import subprocess
import time

import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.kernel_log import KernelLog
from sparkfleet.telemetry import node_readings
from sparkfleet.telemetry.catalogue import PLACES
from sparkfleet.telemetry.local_command import COMMAND_S
from sparkfleet.telemetry.node_readings import (
    LOG_AGAIN_S,
    LOG_EVERY_S,
    LOG_LIMIT_S,
    LOG_OLD_S,
    NodeReader,
    RailDevices,
    read_disks,
)

MEMINFO = """MemTotal:       125520000 kB
MemFree:        20000000 kB
MemAvailable:   30000000 kB
Buffers:            1000 kB
Cached:         10000000 kB
Shmem:           1000000 kB
AnonPages:      40000000 kB
SReclaimable:     500000 kB
SwapTotal:       8000000 kB
SwapFree:        7000000 kB
"""
RAIL = RailDevices(netdev="enp1s0f1np1", rdma="rocep1s0f1")


def put(root, **files):
    for path, text in files.items():
        where = root / path.replace("__", "/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)


@pytest.fixture
def spark(tmp_path):
    """A tree like that of a node with one rail."""
    pressure = (
        "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n"
    )
    put(tmp_path, proc__meminfo=MEMINFO, proc__pressure__memory=pressure)
    put(tmp_path, proc__pressure__cpu="some avg10=25.00 avg60=0.00 avg300=0.00 total=1\n")
    net = "sys__class__net__enp1s0f1np1__"
    put(tmp_path, **{f"{net}carrier": "1\n", f"{net}carrier_changes": "3\n"})
    counts = {"rx_bytes": 100, "tx_bytes": 200, "rx_errors": 1, "tx_errors": 0, "rx_dropped": 2}
    put(tmp_path, **{f"{net}statistics__{name}": f"{value}\n" for name, value in counts.items()})
    port = "sys__class__infiniband__rocep1s0f1__ports__1__"
    put(tmp_path, **{f"{port}counters__port_xmit_data": "10\n", f"{port}counters__port_rcv_data": "20\n"})
    put(tmp_path, **{f"{port}counters__symbol_error": "0\n", f"{port}hw_counters__out_of_sequence": "7\n"})
    put(
        tmp_path,
        sys__class__thermal__thermal_zone0__temp="61500\n",
        sys__class__thermal__thermal_zone1__temp="-1\n",
    )
    return tmp_path


def test_memory_and_pressure(spark):
    found = NodeReader(spark).read()
    assert (found.memory.total, found.memory.available) == (125_520_000 << 10, 30_000_000 << 10)
    assert (
        found.memory.unaccounted
        == (125_520_000 - 20_000_000 - 1000 - 10_000_000 - 40_000_000 - 500_000) << 10
    )
    assert found.memory.swap_used == 1_000_000 << 10
    assert found.pressure == {"cpu": {"some": 0.25}, "memory": {"some": 0.015, "full": 0.005}}


def test_a_rail_has_bytes_errors_carrier_and_rdma(spark):
    (rail,) = NodeReader(spark).read((RAIL,)).rails
    assert (rail.up, rail.carrier_changes, rail.received, rail.sent) == (True, 3, 100, 200)
    assert rail.errors == {"rx_errors": 1, "tx_errors": 0, "rx_dropped": 2}
    assert (rail.rdma_counters.tx_bytes, rail.rdma_counters.rx_bytes) == (40, 80)  # words of four bytes
    assert rail.rdma_counters.others == {"symbol_error": 0, "out_of_sequence": 7}


def test_a_rail_without_its_netdev_is_down_and_has_no_counters(spark):
    (rail,) = NodeReader(spark).read((RailDevices(netdev="gone", rdma="gone"),)).rails
    assert (rail.up, rail.received, rail.carrier_changes, rail.rdma_counters) == (None, None, None, None)


def test_a_netdev_that_is_switched_off_is_down(spark):
    (spark / "sys/class/net/enp1s0f1np1/carrier").unlink()  # reading it is EINVAL then
    (rail,) = NodeReader(spark).read((RAIL,)).rails
    assert rail.up is False


def test_the_hottest_zone_counts_and_nonsense_does_not(spark):
    assert NodeReader(spark)._temperature() == 61.5
    (spark / "sys/class/thermal/thermal_zone0/temp").unlink()
    assert NodeReader(spark)._temperature() is None


def test_the_kernels_log_is_read_once_a_minute(spark, monkeypatch):
    now, reads = [0.0], []
    log = KernelLog(out_of_gpu_memory=1, xids=(79,), slot_power=False)
    monkeypatch.setattr(node_readings, "_kernel_log", lambda: reads.append(1) or log)
    reader = NodeReader(spark, clock=lambda: now[0])
    for now[0] in (0.0, 1.0, LOG_EVERY_S - 1):
        assert reader._kernel_log() == log
    assert len(reads) == 1
    now[0] = LOG_EVERY_S
    reader._kernel_log()
    assert len(reads) == 2


def _or_fails(log):
    if log is None:
        raise FactError("journalctl: it may not be read", means="", do="")
    return log


JOURNALCTL = """#!/bin/sh
[ "$FAILS" ] && { echo "Failed to open the journal" >&2; exit 1; }
case "$*" in
*--since*) echo "$*" >> "$(dirname "$0")/pieces"; cat "$(dirname "$0")/lines" ;;
*) sleep 30 ;;
esac
"""


@pytest.fixture
def long_log(tmp_path, monkeypatch):
    """A journalctl that takes too long for the whole log of a boot, and gives the lines of a file for its end."""
    (tmp_path / "journalctl").write_text(JOURNALCTL)
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(node_readings, "LOG_LIMIT_S", 0.5)
    return tmp_path


def test_a_log_that_takes_too_long_is_read_from_its_end_and_followed(spark, long_log):
    """None of its errors was known, and nothing named that."""
    now = [1000.0]
    reader = NodeReader(spark, clock=lambda: now[0])
    xid = "[{}] kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=1\n"
    (long_log / "lines").write_text(xid.format("900.500000"))
    assert reader._kernel_log().xids == (79,)
    now[0] += LOG_EVERY_S
    (long_log / "lines").write_text(
        "[1050.0] kernel: [NV_ERR_NO_MEMORY]\n" + xid.format("1049.0") + xid.format("900.500000")
    )
    found = reader._kernel_log()
    assert (found.xids, found.out_of_gpu_memory) == ((79, 79), 1), "the line of before counts once"
    assert (found.xids_at, found.out_of_gpu_memory_at) == ({"79": 1049.0}, 1050.0)
    pieces = (long_log / "pieces").read_text().splitlines()
    assert [line.partition("--since ")[2] for line in pieces] == ["600 seconds ago", "120 seconds ago"]
    assert reader.read_slow().kernel_log_readable


def test_a_log_that_cannot_be_read_is_known_to_be_unreadable(spark, long_log, monkeypatch):
    monkeypatch.setenv("FAILS", "1")
    now = [0.0]
    reader = NodeReader(spark, clock=lambda: now[0])
    assert reader.read_slow().kernel_log_readable is False
    monkeypatch.delenv("FAILS")
    (long_log / "lines").write_text("")
    now[0] = LOG_AGAIN_S
    found = reader.read_slow()
    assert (found.kernel_log_readable, found.kernel.xids) == (True, ())


def test_a_reading_of_the_kernels_log_that_fails_is_repeated_soon_and_hides_no_known_error(
    spark, monkeypatch
):
    now = [0.0]
    log = KernelLog(out_of_gpu_memory=1, xids=(79,), slot_power=False)
    answers = iter([log, None, log, None, *[None] * 20])
    monkeypatch.setattr(node_readings, "_kernel_log", lambda: _or_fails(next(answers)))
    reader = NodeReader(spark, clock=lambda: now[0])
    assert reader._kernel_log() == log
    now[0] = LOG_EVERY_S
    assert reader._kernel_log() == log, "one reading failed"
    now[0] += LOG_AGAIN_S
    assert reader._kernel_log() == log
    read_at = now[0]
    for now[0] in (read_at + LOG_EVERY_S, read_at + LOG_OLD_S - 1):
        assert reader._kernel_log() == log, "it fails from now on"
    now[0] = read_at + LOG_OLD_S
    assert reader._kernel_log() is None


def test_a_log_that_takes_longer_than_other_commands_is_read(spark, monkeypatch):
    """A month of a firewall's messages takes seconds, more while a model is loaded."""

    def slow(argv, limit_s=COMMAND_S):
        if limit_s < 15:
            raise subprocess.TimeoutExpired(argv, limit_s)
        return 0, "[   60.5] kernel: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.\n", ""

    monkeypatch.setattr(node_readings, "run_here", slow)
    assert NodeReader(spark)._kernel_log().xids_at == {"79": 60.5}


def test_a_log_that_takes_too_long_leaves_the_node_three_times_as_long_in_peace(spark, monkeypatch):
    """Its limit is as long as the pause was: `journalctl` kept a core busy without end."""
    now, began = [0.0], []

    def too_slow(*piece):
        began.append((now[0], bool(piece)))
        now[0] += LOG_LIMIT_S
        raise subprocess.TimeoutExpired("journalctl", LOG_LIMIT_S)

    monkeypatch.setattr(node_readings, "_kernel_log", too_slow)
    reader = NodeReader(spark, clock=lambda: now[0])
    while now[0] < 300:
        reader._kernel_log()
        now[0] += 1
    assert began == [(0.0, False), (20.0, True), (160.0, True), (240.0, True)]


def test_a_log_that_cannot_be_read_at_first_is_read_soon(spark, monkeypatch):
    now = [0.0]
    log = KernelLog(out_of_gpu_memory=1, xids=(79,), slot_power=False)
    answers = iter([None, log])
    monkeypatch.setattr(node_readings, "_kernel_log", lambda: _or_fails(next(answers)))
    reader = NodeReader(spark, clock=lambda: now[0])
    assert reader._kernel_log() is None
    now[0] = LOG_AGAIN_S
    assert reader._kernel_log() == log


def test_the_time_of_an_error_is_counted_from_the_nodes_boot():
    slow = NodeReader().read_slow()
    assert abs(slow.booted + time.monotonic() - time.time()) < 60


def test_this_machine_is_read_in_milliseconds():
    reader = NodeReader()
    began = time.perf_counter()
    for _ in range(10):
        found = reader.read((RailDevices(netdev="lo"),))
    assert (time.perf_counter() - began) / 10 < 0.1
    assert 0 < found.memory.available < found.memory.total
    assert found.rails[0].received is not None


def test_the_disks_of_this_machine_are_those_of_the_catalogue():
    disks = read_disks()
    assert set(disks) <= set(PLACES)
    assert 0 < disks["root"].free < disks["root"].total


def test_the_disk_of_models_is_that_of_the_cache_they_are_read_from(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert node_readings._places()["hub"] == str(tmp_path / "huggingface" / "hub")
