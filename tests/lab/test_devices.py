"""Device commands without a lab: what they print for settings and netdevs that are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkfleet.hostfacts.kernel_log import ReadKernelLog
from sparkfleet.lab.inside import ethernet, netdevs, pci, rdma, sysfs, system
from sparkfleet.lab.inside import nvidia_smi as smi
from sparkfleet.lab.inside.netdevs import SimulatedNetdev, gid_table
from sparkfleet.lab.inside.node_settings import NETDEVS, NodeSettings
from sparkfleet.lab.meminfo import meminfo

Command = Callable[[list[str], NodeSettings], int]
MAC = "4c:bb:47:01:01:19"


def netdev(
    name: str, *, carrier: bool = True, mtu: int = 9000, ipv4: tuple[str, ...] = ("192.168.100.10",)
) -> SimulatedNetdev:
    return SimulatedNetdev(name, carrier, mtu, MAC, ipv4 if carrier else (), (), dict.fromkeys(
        ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets"), 4000))  # fmt: skip


@pytest.fixture(autouse=True)
def _spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark with one cable in port 1."""
    found = {name: netdev(name, carrier=name.endswith("np1")) for name in NETDEVS}
    for module in (netdevs, ethernet):
        monkeypatch.setattr(module, "read_netdevs", lambda: found)


def said(command: Command, *argv: str, capsys: pytest.CaptureFixture[str], **settings: str) -> str:
    assert command(["x", *argv], NodeSettings(settings)) == 0
    return capsys.readouterr().out


def test_a_counter_is_read_whole_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, root = tmp_path / "net", tmp_path / "infiniband"
    monkeypatch.setattr(sysfs, "KERNELS", kernels)

    def moved(size: int) -> None:
        for name in NETDEVS:
            for way in ("tx", "rx"):
                (kernels / name / "statistics").mkdir(parents=True, exist_ok=True)
                (kernels / name / f"statistics/{way}_bytes").write_text(f"{size}\n")
                (kernels / name / f"statistics/{way}_packets").write_text("7\n")
        sysfs.count(root)

    counters = root / "rocep1s0f1/ports/1/counters"
    moved(4 * 9056)
    with open(counters / "port_xmit_data", "rb", buffering=0) as file:  # as cat does: until there is no more
        first = file.read(4096)
        moved(4 * 123454)
        assert (first, file.read(4096)) == (b"9056\n", b"")
    assert (counters / "port_xmit_data").read_text() == "123454\n"
    assert sorted(path.name for path in counters.iterdir()) == [
        "port_rcv_data", "port_rcv_packets", "port_xmit_data", "port_xmit_packets",
    ]  # fmt: skip


def test_ibdev2netdev_is_the_playbooks(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(rdma.ibdev2netdev, capsys=capsys).splitlines() == [
        "rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)",
        "rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)",
        "roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)",
        "roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)",
    ]


def test_rdma_link_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(rdma.rdma, "link", capsys=capsys)
    assert "link rocep1s0f1/1 state ACTIVE physical_state LINK_UP netdev enp1s0f1np1" in text
    rows = json.loads(said(rdma.rdma, "-j", "link", "show", capsys=capsys))
    assert [row["state"] for row in rows] == ["DOWN", "ACTIVE", "DOWN", "ACTIVE"]


def test_ibv_devinfo_follows_mtu_and_carrier(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(rdma.ibv_devinfo, "-d", "rocep1s0f1", capsys=capsys)
    assert "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n" in text
    assert "\t\t\tactive_mtu:\t\t4096 (5)\n" in text
    assert "PORT_DOWN (1)" in said(rdma.ibv_devinfo, "-d", "rocep1s0f0", capsys=capsys)


@pytest.mark.parametrize(("knob", "indices"), [("ok", [2, 3]), ("missing", []), ("shifted", [4, 5])])
def test_indexes_of_the_ipv4_gids(knob: str, indices: list[int]) -> None:
    found = [gid for gid in gid_table(netdev("enp1s0f1np1"), knob) if gid.ipv4]
    assert [gid.index for gid in found] == indices
    assert all(gid.value == "0000:0000:0000:0000:0000:ffff:c0a8:640a" for gid in found)


def test_nvidia_smi_answers_in_the_order_of_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    fields = "--query-gpu=index,gpu_name,pci.bus_id,driver_version,compute_cap,memory.total"
    line = said(smi.nvidia_smi, fields, "--format=csv,noheader", capsys=capsys, driver="580.142")
    assert line == "0, NVIDIA GB10, 0000000F:01:00.0, 580.142, 12.1, [N/A]\n"
    bare = said(
        smi.nvidia_smi,
        "--query-gpu",
        "memory.used,clocks.sm",
        "--format",
        "csv,noheader,nounits",
        capsys=capsys,
    )
    assert bare == "[N/A], 208\n"
    head = said(smi.nvidia_smi, "--query-gpu=name,power.draw", "--format=csv", capsys=capsys).splitlines()[0]
    assert head == "name, power.draw [W]"


def test_nvidia_smi_refuses_as_the_real_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert smi.nvidia_smi(["x", "--query-gpu=bogus", "--format=csv"], NodeSettings({})) == 2
    assert 'Field "bogus" is not a valid field to query.' in capsys.readouterr().out
    assert smi.nvidia_smi(["x"], NodeSettings({"gpu": "missing"})) == 6
    assert capsys.readouterr().out == "No devices were found\n"


def test_the_table_is_as_wide_as_its_frame(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in said(smi.nvidia_smi, capsys=capsys).splitlines() if line]
    assert {len(line) for line in lines} == {91}


def test_a_wedge_is_high_use_with_low_clock_and_no_reason(capsys: pytest.CaptureFixture[str]) -> None:
    fields = "--query-gpu=clocks.sm,power.draw,utilization.gpu,clocks_event_reasons.active"
    line = said(smi.nvidia_smi, fields, "--format=csv,noheader", capsys=capsys, clock="wedged")
    assert line == "650 MHz, 14.20 W, 96 %, 0x0000000000000000\n"


def test_a_clock_that_heat_holds_down_has_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    fields = "--query-gpu=clocks.sm,clocks_event_reasons.active,clocks_event_reasons.hw_thermal_slowdown"
    line = said(smi.nvidia_smi, fields, "--format=csv,noheader", capsys=capsys, clock="throttled")
    assert line == "1210 MHz, 0x0000000000000048, Active\n"


@pytest.mark.parametrize("machine", ["jetson-thor", "gh200", "rtx-spark"])
def test_other_machines_have_their_own_identity(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = said(smi.nvidia_smi, "--query-gpu=name", "--format=csv,noheader", capsys=capsys, machine=machine)
    assert name.strip() != "NVIDIA GB10"
    assert "10de:2e12" not in said(pci.lspci, "-nn", capsys=capsys, machine=machine)


def test_lspci_shows_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    healthy = said(pci.lspci, "-vvv", "-s", "0000:01:00.1", capsys=capsys)
    assert "LnkSta:\tSpeed 32GT/s, Width x4\n" in healthy
    assert healthy.count("LnkCap") == 1
    narrow = said(pci.lspci, "-vv", "-s01:00.1", capsys=capsys, **{"pcie_width.rocep1s0f1": "2"})
    assert "Width x2 (downgraded)" in narrow
    assert len(said(pci.lspci, "-d", "15b3:", capsys=capsys).splitlines()) == 4
    assert said(pci.lspci, "-nn", "-d", "10de:", capsys=capsys).endswith(
        "NVIDIA Corporation Device [10de:2e12] (rev a1)\n"
    )


def test_an_xid_is_in_the_log_that_doctor_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`set NODE xid=79` was in `dmesg` only, and `doctor` had "the kernel's log has no GPU errors"."""
    for argv, at in ((ReadKernelLog.argv, {}), (ReadKernelLog.argv_here, {"79": 932.4})):
        found = ReadKernelLog.parse(said(pci.journalctl, *argv[1:], capsys=capsys, xid="79"))
        assert (found.xids, found.xids_at) == ((79,), at)
    passed: list[list[str]] = []
    monkeypatch.setattr(pci, "pass_on", lambda name, arguments: passed.append([name, *arguments]) or 0)
    assert said(pci.journalctl, *ReadKernelLog.argv[1:], capsys=capsys) == ""
    assert said(pci.journalctl, "-u", "ssh", capsys=capsys, xid="79") == ""
    assert passed == [list(ReadKernelLog.argv), ["journalctl", "-u", "ssh"]]


def test_ethtool_without_a_cable(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(ethernet.ethtool, "enp1s0f0np0", capsys=capsys)
    assert "\tSpeed: Unknown!\n" in text
    assert text.endswith("\tLink detected: no (No cable)\n")
    assert "\tSpeed: 200000Mb/s\n" in said(ethernet.ethtool, "enp1s0f1np1", capsys=capsys)
    assert "Active FEC encoding: RS" in said(ethernet.ethtool, "--show-fec", "enp1s0f1np1", capsys=capsys)


def test_prlimit_and_timedatectl(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(system.prlimit, "--memlock", "-o", "SOFT", "-n", capsys=capsys, memlock="64") == "65536\n"
    answer = said(system.timedatectl, "show", "-p", "NTPSynchronized", "--value", capsys=capsys, ntp="no")
    assert answer == "no\n"


def test_memory_of_a_process_is_missing_from_meminfo() -> None:
    def available(text: str) -> int:
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable"))

    assert available(meminfo("spark", 0)) - available(meminfo("spark", 1000)) == 1000 * 1024
    assert available(meminfo("leaked", 0)) == 40174336
    assert available(meminfo("spark", 0)) - available(meminfo("spark-64", 0)) == 127600748 - 62500000
