"""Faults that are real if they can be: cables, disks, clocks, limits, keys."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_probes import RAILS, big_ping, eventually, ssh

from sparkfleet.lab import Lab, LabError
from sparkfleet.lab.faults import slow

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]


def test_a_pulled_rail_has_no_carrier_and_the_other_works(lab: Lab) -> None:
    lab.cut("spark1-spark2", 0)
    for node in ("spark1", "spark2"):
        assert lab.exec(node, ["cat", "/sys/class/net/enp1s0f1np1/carrier"]).stdout == "0\n"
        assert "rocep1s0f1 port 1 ==> enp1s0f1np1 (Down)" in lab.exec(node, ["ibdev2netdev"]).stdout
    state = ["cat", "/sys/class/infiniband/rocep1s0f1/ports/1/state"]
    assert lab.exec("spark1", state).stdout == "1: DOWN\n"
    speed = ["cat", "/sys/class/net/enp1s0f1np1/speed", "/sys/class/net/enp1s0f1np1/operstate"]
    assert lab.exec("spark1", speed).stdout == "-1\ndown\n"
    assert not big_ping(lab, RAILS[0])
    assert eventually(lambda: big_ping(lab, RAILS[1]))
    lab.mend("spark1-spark2", 0)
    assert eventually(lambda: big_ping(lab, RAILS[0]))
    assert lab.exec("spark1", state).stdout == "4: ACTIVE\n"
    assert lab.exec("spark1", speed).stdout == "200000\nup\n"


@pytest.mark.skipif(not shutil.which("iperf3"), reason="no iperf3")
def test_slow_limits_the_rate_as_requested(lab: Lab) -> None:
    lab.slow("spark1-spark2", 1, gbit=0.05)  # which busy processors reach, too
    bits = iperf(lab, RAILS[1])
    assert 0.03e9 < bits < 0.06e9
    lab.mend("spark1-spark2", 1)
    assert iperf(lab, RAILS[1]) > 2 * bits


def iperf(lab: Lab, address: str) -> float:
    with subprocess.Popen(lab.argv("spark2", ["iperf3", "-s", "-1"]), stdout=subprocess.DEVNULL) as server:
        listening = ["ss", "-Hltn", "sport = :5201"]
        assert eventually(lambda: bool(lab.exec("spark2", listening).stdout))
        report = json.loads(lab.exec("spark1", ["iperf3", "-J", "-t", "1", "-c", address]).stdout)
        server.wait(10)
    return float(report["end"]["sum_received"]["bits_per_second"])


def test_a_small_mtu_at_one_end_drops_big_packets(lab: Lab) -> None:
    lab.mtu("spark1-spark2", 0, 1500, node="spark2")
    assert not big_ping(lab, RAILS[0])
    assert "active_mtu:\t\t1024 (3)" in lab.exec("spark2", ["ibv_devinfo", "-d", "rocep1s0f1"]).stdout
    with pytest.raises(LabError):
        lab.mtu("spark1-spark2", 0, 10)
    with pytest.raises(LabError, match="spark9 is at no end of spark1-spark2"):
        lab.mtu("spark1-spark2", 0, 1500, node="spark9")


@pytest.mark.parametrize(
    "given", [{}, {"gbit": 0.0}, {"gbit": math.nan}, {"gbit": 1.0, "delay_ms": math.inf}]
)
def test_a_rate_or_a_delay_that_is_none_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(LabError, match="needs a rate or a delay"):
        slow("nolab", "spark1-spark2", 0, **given)


def test_both_rails_in_one_subnet(lab: Lab) -> None:
    lab.subnet("spark1-spark2", 1, "192.168.100.0/24")
    rows = json.loads(lab.exec("spark2", ["ip", "-j", "-4", "addr", "show"]).stdout)
    addresses = {row["ifname"]: row["addr_info"][0]["local"] for row in rows}
    assert addresses["enp1s0f1np1"] == "192.168.100.11"
    assert addresses["enP2p1s0f1np1"] == "192.168.100.111"


@pytest.mark.parametrize(
    ("settings", "gbit"), [({}, 98.04), ({"rdma_gbit.rocep1s0f1": "13.2"}, 13.2), ({"pcie_width": "2"}, 56.0)]
)
def test_bandwidth_is_that_of_the_worse_end_and_bytes_move(
    lab: Lab, settings: dict[str, str], gbit: float
) -> None:
    lab.set("spark2", settings)
    before = transmitted(lab)
    assert write_bw(lab, "rocep1s0f1", RAILS[0]) == gbit
    assert eventually(lambda: transmitted(lab) > before + 50_000)


def transmitted(lab: Lab) -> int:
    path = "/sys/class/infiniband/rocep1s0f1/ports/1/counters/port_xmit_data"
    return int(lab.exec("spark1", ["cat", path]).stdout)


def write_bw(lab: Lab, device: str, address: str) -> float:
    argv = ["ib_write_bw", "-d", device, "-p", "12000", "-F", "--report_gbits"]
    with subprocess.Popen(lab.argv("spark2", argv), stdout=subprocess.DEVNULL) as server:
        assert eventually(lambda: bool(lab.exec("spark2", ["ss", "-Hltn", "sport = :12000"]).stdout))
        done = lab.exec("spark1", [*argv, address])
        server.wait(30)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-2].split()[3])


def test_a_device_without_its_gid_cannot_be_used(lab: Lab) -> None:
    lab.set("spark1", {"gid.rocep1s0f1": "missing"})
    done = lab.exec("spark1", ["ib_write_bw", "-d", "rocep1s0f1", RAILS[0]])
    assert done.returncode == 1
    assert "Unable to Connect the HCA's" in done.stderr


def test_identity_of_another_node(lab: Lab) -> None:
    lab.set("spark2", host_key="spark1", machine_id="spark1")
    assert len({node.host_key for node in lab.nodes}) == 1
    assert len({lab.exec(node, ["cat", "/etc/machine-id"]).stdout for node in ("spark1", "spark2")}) == 1


def test_a_changed_host_key_is_served_at_once(lab: Lab) -> None:
    assert ssh(lab, "spark2", "true").returncode == 0
    lab.set("spark2", host_key="new")
    assert eventually(lambda: "HOST IDENTIFICATION HAS CHANGED" in ssh(lab, "spark2", "true").stderr)


def test_a_leftover_process_is_listed_until_it_is_gone(lab: Lab) -> None:
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    words = ("set", "spark1", "holder_mib=94000", "meminfo=spark", "--name", lab.name)
    subprocess.run(
        [sys.executable, "-m", "sparkfleet.lab", *words], stdout=subprocess.PIPE, check=True, timeout=60
    )  # the process lives on, and leaves the command's output alone
    pid, held = lab.exec("spark1", query).stdout.strip().split(", ")
    assert held == "94000"
    lab.exec("spark1", ["kill", "-9", pid])
    assert eventually(lambda: lab.exec("spark1", query).stdout == "")


def test_reported_memory_changes_at_once_and_is_undone(lab: Lab) -> None:
    real = memory_total(lab)
    lab.set("spark1", meminfo="spark")
    watch = "while [ ! -e /tmp/enough ]; do cat /proc/meminfo; done | grep MemTotal | sort | uniq"
    with subprocess.Popen(lab.argv("spark1", ["sh", "-c", watch]), stdout=subprocess.PIPE, text=True) as seen:
        for held in ("1000", "90000", "0"):
            lab.set("spark1", holder_mib=held)
        lab.exec("spark1", ["touch", "/tmp/enough"])
        assert seen.communicate(timeout=60)[0].split() == ["MemTotal:", "127600748", "kB"]
    lab.heal("spark1")
    assert memory_total(lab) == real


def memory_total(lab: Lab) -> str:
    return lab.exec("spark1", ["grep", "MemTotal", "/proc/meminfo"]).stdout


def test_a_small_disk_is_really_small(lab: Lab) -> None:
    lab.set("spark1", disk="4M")
    write = ["dd", "if=/dev/zero", "of=/home/nvidia/.cache/huggingface/x", "bs=1M", "count=8"]
    assert "No space left on device" in lab.exec("spark1", write).stderr
    lab.heal("spark1")
    assert lab.exec("spark1", write).returncode == 0


@pytest.mark.parametrize(
    ("settings", "argv", "expected"),
    [
        ({"driver": "590.44.01"}, ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], "590.44.01"),
        ({"machine": "jetson-thor"}, ["cat", "/sys/class/dmi/id/product_name"], "NVIDIA Jetson AGX Thor Developer Kit"),
        ({"machine": "gh200"}, ["find", "/etc", "-maxdepth", "1", "-name", "*-release", "-newer", "/etc/none"], ""),
        ({"groups": ""}, ["id", "-Gn"], "nvidia"),
        ({"container": "none"}, ["find", "/usr/bin", "-name", "podman"], ""),
        ({"memlock": "64"}, ["prlimit", "--memlock", "-o", "SOFT", "-n"], "65536"),
        ({"clock": "wedged"}, ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"], "650"),
        ({"gid": "shifted"}, ["grep", "-l", "v2", "/sys/class/infiniband/rocep1s0f1/ports/1/gid_attrs/types/5"],
         "/sys/class/infiniband/rocep1s0f1/ports/1/gid_attrs/types/5"),
    ],
)  # fmt: skip
def test_knobs_take_effect(lab: Lab, settings: dict[str, str], argv: list[str], expected: str) -> None:
    lab.set("spark1", settings)
    assert eventually(lambda: ssh(lab, "spark1", *argv).stdout.strip() == expected)


def test_root_through_sudo_only_if_it_was_set(lab: Lab) -> None:
    if not Path("/usr/bin/sudo").exists():
        pytest.skip("no sudo on this machine")
    assert ssh(lab, "spark1", "sudo", "-n", "id", "-u").returncode != 0
    lab.set("spark1", sudo="yes")
    assert ssh(lab, "spark1", "sudo", "-n", "id", "-u").stdout == "0\n"
    assert ssh(lab, "spark2", "sudo", "-n", "id", "-u").returncode != 0


def test_a_skewed_clock(lab: Lab) -> None:
    lab.set("spark2", clock_skew="90")
    for node, ahead_s in (("spark1", 0), ("spark2", 90)):
        before = time.time()
        told = float(ssh(lab, node, "date", "+%s.%N").stdout)
        assert before <= told - ahead_s <= time.time()
