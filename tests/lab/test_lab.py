"""Labs of real namespaces: real ssh, ping, cron."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from lab_probes import RAILS, big_ping, eventually, out, ssh

from sparkfleet.lab import Lab, LabError
from sparkfleet.specs.load import parse_inventory

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]
REPOSITORY = Path(__file__).parents[2]


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
