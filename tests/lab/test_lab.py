"""Labs of real namespaces: real ssh, ping, cron; faults that are real where they can be."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkfleet.lab import Lab, LabError
from sparkfleet.lab import state as states
from sparkfleet.lab.faults import slow
from sparkfleet.lab.power import inits_of
from sparkfleet.specs.load import parse_inventory

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]
REPOSITORY = Path(__file__).parents[2]
RAILS = ["192.168.100.11", "192.168.101.11"]


def eventually(holds: Callable[[], bool], within_s: float = 20.0) -> bool:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def out(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def ssh(lab: Lab, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = ("ssh", "-F", str(lab.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", node, *argv)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def big_ping(lab: Lab, address: str) -> bool:
    argv = ["ping", "-c", "1", "-W", "1", "-M", "do", "-s", "8972", address]
    return lab.exec("spark1", argv).returncode == 0


def traces(name: str) -> dict[str, list[str]]:
    """Traces of a lab on this machine."""
    return {
        "namespaces": [
            line.split()[0] for line in out("ip", "netns").splitlines() if line.startswith(f"sfl-{name}")
        ],
        "netdevs": [
            r["ifname"] for r in json.loads(out("ip", "-j", "link")) if r["ifname"].startswith(f"sfl-{name}")
        ],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if f"sfl-{name}" in line],
        "processes": [str(process.pid) for process in inits_of(name)] + keepers(name),
        "files": [
            str(path) for path in (states.HOME / name, *states.REGISTRY.glob(f"{name}.*")) if path.exists()
        ],
    }


def keepers(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sparkfleet.lab.reaper" in words and name.encode() in words:
            found.append(path.parent.name)
    return found


def nothing(name: str) -> bool:
    return not any(traces(name).values())


def test_ssh_as_the_user_with_the_labs_key(lab: Lab) -> None:
    for node in lab.nodes:
        done = ssh(lab, node.name, "hostname; id -un; echo $HOME; nvidia-smi -L; cat /etc/dgx-release")
        name, user, home, gpu, *release = done.stdout.splitlines()
        assert (name, user, home) == (node.name, "nvidia", "/home/nvidia")
        assert gpu.startswith("GPU 0: NVIDIA GB10")
        assert 'DGX_NAME="DGX Spark"' in release


def test_no_other_key_and_no_password(lab: Lab, tmp_path: Path) -> None:
    out("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    address = lab.nodes[0].address
    argv = ["ssh", "-F", "none", "-i", str(tmp_path / "other"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
            "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path / 'k'}"]  # fmt: skip
    for user in ("nvidia", "root"):
        done = subprocess.run(
            [*argv, f"{user}@{address}", "true"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 255
        assert "Permission denied (publickey)" in done.stderr


def test_host_keys_are_those_of_the_lab_and_differ(lab: Lab, tmp_path: Path) -> None:
    for node in lab.nodes:
        (tmp_path / "keys").write_text(out("ssh-keyscan", "-t", "ed25519", node.address))
        assert out("ssh-keygen", "-l", "-f", str(tmp_path / "keys")).split()[1] == node.host_key
    assert len({node.host_key for node in lab.nodes}) == 2


def test_the_inventory_is_valid(lab: Lab) -> None:
    inventory = parse_inventory(lab.inventory())
    assert {name: node.address for name, node in inventory.nodes.items()} == {
        n.name: n.address for n in lab.nodes
    }
    assert {node.host_key for node in inventory.nodes.values()} == {n.host_key for n in lab.nodes}
    assert [len(link.rails) for link in inventory.links] == [2]


def test_jumbo_frames_on_each_rail(lab: Lab) -> None:
    assert eventually(lambda: [big_ping(lab, address) for address in RAILS] == [True, True])


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


def test_sys_shows_a_change_as_soon_as_it_was_made(lab: Lab) -> None:
    device = "/sys/class/infiniband/rocep1s0f1/ports/1"
    for value, returned in [("missing", 1), ("ok", 0)] * 5:
        lab.set("spark1", {"gid.rocep1s0f1": value})
        assert lab.exec("spark1", ["cat", f"{device}/gid_attrs/types/3"]).returncode == returned
    for _ in range(3):
        lab.cut("spark1-spark2", 0)
        assert lab.exec("spark1", ["cat", f"{device}/state"]).stdout == "1: DOWN\n"
        lab.mend("spark1-spark2", 0)
        assert lab.exec("spark1", ["cat", f"{device}/state"]).stdout == "4: ACTIVE\n"


def test_a_change_that_a_stopped_node_cannot_show_is_an_error(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkfleet.lab.shown._WAIT_S", 0.5)
    init = states.load(lab.name).inits["spark1"].pid
    os.kill(init, signal.SIGSTOP)
    try:
        with pytest.raises(LabError, match=f"(?s)spark1 does not show the change after.*{init}"):
            lab.set("spark1", speed="100000")
    finally:
        os.kill(init, signal.SIGCONT)


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
    lab.set("spark1", holder_mib="94000", meminfo="spark")
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


def test_a_reboot_clears_memory_file_systems_and_runs_cron(lab: Lab) -> None:
    lab.exec("spark1", ["crontab", "-"], stdin="@reboot nvidia-smi -L > /home/nvidia/booted\n")
    lab.exec("spark1", ["sh", "-c", "touch /tmp/x /dev/shm/x ~/kept; sleep 1000 >/dev/null 2>&1 &"])
    lab.reboot("spark1")
    assert eventually(lambda: lab.exec("spark1", ["test", "-s", "/home/nvidia/booted"]).returncode == 0)
    assert lab.exec("spark1", ["ls", "/tmp", "/dev/shm"]).stdout.split() == ["/dev/shm:", "/tmp:"]
    assert lab.exec("spark1", ["test", "-e", "/home/nvidia/kept"]).returncode == 0
    assert lab.exec("spark1", ["pgrep", "sleep"]).returncode == 1
    assert ssh(lab, "spark1", "true").returncode == 0
    assert eventually(lambda: big_ping(lab, RAILS[1]))


def test_a_node_is_up_when_its_sshd_listens(lab: Lab) -> None:
    lab.set("spark2", memlock="64")
    for _ in range(3):
        lab.reboot("spark2")  # sets sshd's limit again, for which it has to be there
        socket.create_connection((lab.nodes[1].address, 22), timeout=10).close()


def test_a_node_without_power_takes_its_links_down(lab: Lab) -> None:
    lab.kill("spark2")
    assert lab.powered == ("spark1",)
    assert lab.exec("spark1", ["cat", "/sys/class/net/enP2p1s0f1np1/carrier"]).stdout == "0\n"
    assert ssh(lab, "spark2", "true").returncode == 255
    with pytest.raises(LabError, match="powered off"):
        lab.exec("spark2", ["true"])
    lab.set("spark2", container="none", host_key="spark1")
    lab.boot("spark2")
    assert lab.exec("spark2", ["podman", "--version"]).returncode == 127
    lab.heal("spark2")
    assert ssh(lab, "spark2", "true").returncode == 0
    assert eventually(lambda: big_ping(lab, RAILS[0]))


def test_nodes_cannot_reach_the_internet_or_change_the_host(lab: Lab) -> None:
    done = lab.exec("spark1", ["ping", "-c", "1", "-W", "2", "192.0.2.1"])
    assert "Unreachable" in done.stdout
    assert lab.exec("spark1", ["touch", "/usr/bin/x"]).returncode == 1
    assert lab.exec("spark1", ["touch", "/usr/bin/x"], root=True).returncode == 1
    assert lab.exec("spark1", ["ls", "/root"]).returncode == 2
    assert lab.exec("spark1", ["cat", "/etc/shadow"], root=True).stdout.count(":*:") == len(
        lab.exec("spark1", ["cat", "/etc/passwd"]).stdout.splitlines()
    )


def test_hostile_arguments_are_never_interpreted(lab: Lab) -> None:
    words = ["a b", "$(reboot)", "; rm -rf /", "`x`", "-n", "'\"", "ü\n"]
    done = lab.exec(
        "spark1",
        ["/usr/bin/python3", "-c", "import sys; print(sys.argv[1:])", *words],
    )
    assert done.stdout == f"{words}\n"


def test_two_labs_side_by_side_and_a_shared_environment(lab: Lab) -> None:
    with Lab.up(nodes=1, shares=[sys.prefix, REPOSITORY]) as other:
        assert other.layout.network != lab.layout.network
        done = ssh(
            other,
            "spark1",
            sys.executable,
            "-c",
            "'import pydantic, sparkfleet; print(sparkfleet.__version__)'",
        )
        assert done.returncode == 0, done.stderr
        assert lab.exec("spark1", ["ping", "-c", "1", "-W", "1", other.nodes[0].address]).returncode != 0
        with pytest.raises(LabError, match="is already up"):
            Lab.up(name=other.name)
    assert ssh(lab, "spark1", "true").returncode == 0


@pytest.mark.parametrize(("nodes", "topology"), [(3, "ring"), (3, "switch")])
def test_every_rail_of_other_topologies(nodes: int, topology: str) -> None:
    with Lab.up(nodes=nodes, topology=topology) as lab:
        for cable in lab.links:
            for rail in cable.rails:
                ends = (
                    rail.ends
                    if topology == "ring"
                    else [c.rails[cable.rails.index(rail)].ends[0] for c in lab.links]
                )
                for end in ends[1:]:
                    argv = [
                        "ping",
                        "-c",
                        "1",
                        "-W",
                        "1",
                        "-M",
                        "do",
                        "-s",
                        "8972",
                        end.address.partition("/")[0],
                    ]
                    assert eventually(lambda end=ends[0], argv=argv: lab.exec(end.node, argv).returncode == 0)
        parse_inventory(lab.inventory())
        if topology == "switch":
            lab.cut("spark2-switch", 0)
            carriers = [
                lab.exec(f"spark{n}", ["cat", "/sys/class/net/enp1s0f1np1/carrier"]).stdout for n in (1, 2, 3)
            ]
            assert carriers == ["1\n", "0\n", "1\n"]


def test_down_leaves_nothing_and_may_be_repeated() -> None:
    def hosts_own() -> list[str]:
        return [line for line in out("ip", "-br", "link").splitlines() if not line.startswith("sfl-")]

    before = hosts_own()
    lab = Lab.up(nodes=2)
    assert all(traces(lab.name).values()), traces(lab.name)
    assert hosts_own() == before
    lab.down()
    assert nothing(lab.name), traces(lab.name)
    assert hosts_own() == before
    lab.down()


def start(name: str, *more: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "sparkfleet.lab", "up", "--nodes", "3", "--name", name, *more]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("stage", ["namespaces", "processes"])
def test_a_killed_up_leaves_nothing(stage: str) -> None:
    name = f"k{os.getpid() % 10**6}{stage[0]}"
    making = start(name)
    first = len(keepers(name)) + 1 if stage == "processes" else 1
    assert eventually(lambda: len(traces(name)[stage]) >= first)
    making.send_signal(signal.SIGKILL)
    making.wait()
    assert eventually(lambda: nothing(name), 60), traces(name)


def test_the_next_down_clears_a_lab_killed_with_its_reaper() -> None:
    name = f"m{os.getpid() % 10**6}"
    making = start(name)
    assert eventually(lambda: len(traces(name)["namespaces"]) >= 1 and bool(keepers(name)))
    for pid in keepers(name):
        os.kill(int(pid), signal.SIGKILL)
    making.send_signal(signal.SIGKILL)
    making.wait()
    assert not nothing(name)
    Lab(name).down()
    assert nothing(name), traces(name)


def test_an_owner_that_does_not_exist_leaves_nothing() -> None:
    name = f"w{os.getpid() % 10**6}"
    assert start(name, "--with", "999999999").wait() == 1
    assert nothing(name), traces(name)


def test_an_interrupted_up_leaves_nothing() -> None:
    name = f"i{os.getpid() % 10**6}"
    making = start(name)
    assert eventually(lambda: len(traces(name)["namespaces"]) >= 1)
    making.send_signal(signal.SIGINT)
    assert making.wait() == 130
    assert nothing(name), traces(name)


def test_a_lab_ends_with_its_owner() -> None:
    name = f"o{os.getpid() % 10**6}"
    with subprocess.Popen(["sleep", "600"]) as owner:
        assert start(name, "--with", str(owner.pid)).wait() == 0
        assert Lab(name).powered == ("spark1", "spark2", "spark3")
        owner.kill()
    assert eventually(lambda: nothing(name), 60), traces(name)


def test_users_without_root_get_an_error() -> None:
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-m", "sparkfleet.lab", "up"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "A lab needs root." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv",
    [["exec", "spark1", "--name", "nolab"], ["cut", "a/b"],
     ["set", "spark1", "x=y", "--name", "nolab"], ["down", "--name", "A;B"],
     ["up", "--nodes", "99"], ["up", "--name", "x y"], ["up", "--share", "/nowhere"], ["up", "--dir", "/etc"],
     ["up", "--dir", "/tmp/a b"]],
)  # fmt: skip
def test_errors_have_no_traceback(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparkfleet.lab", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
