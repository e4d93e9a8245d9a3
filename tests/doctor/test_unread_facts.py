"""Facts that could not be read: neither fine nor a fault."""

import re

import pytest
from spark_faults import (
    FIRST,
    SECOND,
    leftover,
)

from sparkfleet.doctor import registry
from sparkfleet.doctor.findings import Severity
from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.gpu import ReadGpuState
from sparkfleet.hostfacts.memory import ReadKernel
from sparkfleet.hostfacts.network.rdma import ReadGidsOfKernel
from sparkfleet.hostfacts.privileges import ReadServices
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.remote.channel import Completed


def _failed(*argv):
    return Completed(argv=argv, exit_code=1, stdout="", stderr="a failure")


def without_time(a, b):
    b.answers["timedatectl",] = "NTP=\nNTPSynchronized=\n"


def without_pressure(a, b):
    b.answers[ReadKernel.argv] = re.sub(r"/proc/pressure/memory:.*\n", "", b.answers[ReadKernel.argv])


def without_throttling(a, b):
    line = b.answers[ReadGpuState.argv].strip()
    b.answers[ReadGpuState.argv] = ", ".join((*line.split(",")[:-1], "[N/A]"))


def without_power(a, b):
    fields = b.answers[ReadGpuState.argv].strip().split(",")
    fields[6] = "[N/A]"
    b.answers[ReadGpuState.argv] = ",".join(fields)


def without_zones(a, b):
    b.change(ReadServices.argv, "51500", "null")


def without_processes(a, b):
    leftover(a, b)
    b.answers[ReadHoldingProcesses.argv] = "no JSON"


def without_ethtool(a, b):
    for name in (FIRST, SECOND):
        b.answers["ethtool", name] = _failed("ethtool")


def without_fec(a, b):
    for name in (FIRST, SECOND):
        b.answers["ethtool", "--show-fec", name] = _failed("ethtool")


def without_lanes(a, b):
    for name in (FIRST, SECOND):
        base = f"/sys/class/net/{name}/device/current_link"
        b.answers["grep", "-sH", ".", f"{base}_speed", f"{base}_width"] = ""


def without_gids(a, b):
    b.answers[ReadGidsOfKernel.argv] = _failed("sh")


def without_ibv(a, b):
    b.answers["ibv_devinfo",] = _failed("ibv_devinfo")


def with_a_hanging_docker(a, b):
    b.answers["docker", "info"] = NodeError("docker info did not end within 20 s.")


UNREAD = [
    (without_time, "clock-synchronised"),
    (without_pressure, "memory-pressure"),
    (without_throttling, "gpu-throttled"),
    (without_power, "power-wedge"),
    (without_zones, "zones-cool"),
    (without_processes, "memory-leftover"),
    (without_ethtool, "rail-speed"),
    (without_fec, "rail-fec"),
    (without_lanes, "rail-pcie"),
    (without_gids, "rail-gid"),
    (without_ibv, "rail-rdma-mtu"),
    (with_a_hanging_docker, "container-tool"),
]


@pytest.mark.parametrize(("harm", "check"), UNREAD, ids=[harm.__name__ for harm, _ in UNREAD])
async def test_what_was_not_read_is_neither_fine_nor_a_fault(sparks, look, harm, check):
    harm(*sparks)
    told = [one for one in registry.examine(await look()) if one.id == check and "spark2" in one.subject]
    assert {one.severity for one in told} == {Severity.UNKNOWN}
    assert all("because " in one.what for one in told)
