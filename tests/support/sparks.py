"""Two healthy Sparks and their cable, by the output of their commands; and ways to make them ill."""

import base64
import json
import time
from pathlib import Path

from batch_fake import BatchFake

from sparkfleet.hostfacts.clock import ReadClock
from sparkfleet.hostfacts.disk import ReadDisks
from sparkfleet.hostfacts.gpu import ReadGpuProcesses, ReadGpuState
from sparkfleet.hostfacts.machine import ReadHostKeys, ReadIdentity
from sparkfleet.hostfacts.memory import ReadFreeBlocks, ReadKernel
from sparkfleet.hostfacts.network.arp_ndp import ReadLooseArp
from sparkfleet.hostfacts.network.rdma import ReadGidsOfKernel
from sparkfleet.hostfacts.privileges import ReadServices
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.remote.channel import Completed
from sparkfleet.specs.load import parse_inventory

CAPTURES = Path(__file__).parents[1] / "hostfacts" / "captures"

NAMES = ("spark1", "spark2")
RAILS = (("enp1s0f1np1", "rocep1s0f1", 100), ("enP2p1s0f1np1", "roceP2p1s0f1", 101))

INVENTORY = """
fleet: home
head: spark1
nodes:
  spark1: {address: 192.168.1.11, user: nvidia, host_key: "SHA256:KEY-ONE"}
  spark2: {address: 192.168.1.12, user: nvidia, host_key: "SHA256:KEY-TWO"}
links:
  - nodes: [spark1, spark2]
    rails:
      - - {netdev: enp1s0f1np1, rdma: rocep1s0f1, address: 192.168.100.11/24}
        - {netdev: enp1s0f1np1, rdma: rocep1s0f1, address: 192.168.100.12/24}
      - - {netdev: enP2p1s0f1np1, rdma: roceP2p1s0f1, address: 192.168.101.11/24}
        - {netdev: enP2p1s0f1np1, rdma: roceP2p1s0f1, address: 192.168.101.12/24}
""".replace("KEY-ONE", "A" * 43).replace("KEY-TWO", "B" * 42 + "A")


def buddies(*counts):
    """/proc/buddyinfo of a Spark whose kernel keeps blocks of up to 32 MiB, with the line of its huge pages."""
    columns = " ".join(f"{count:6}" for count in counts)
    return f"/proc/buddyinfo:Node 0, zone   Normal {columns} \n/proc/meminfo:Hugepagesize:       2048 kB\n"


def arp(**netdevs):
    """`arp_ignore` of each netdev."""
    return "".join(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore:{value}\n" for name, value in netdevs.items())


def inventory():
    return parse_inventory(INVENTORY, "inventory.yaml")


def capture(name):
    return (CAPTURES / name).read_text()


def netdev(name, address, mtu=9000, up=True, carrier=True, **more):
    flags = ["BROADCAST", "MULTICAST"] + ["UP"] * up + ["LOWER_UP"] * carrier
    ip, _, prefix = address.partition("/")
    info = [{"family": "inet", "local": ip, "prefixlen": int(prefix), "scope": "global"}] if ip else []
    mac = f"3c:6d:66:00:{len(name):02x}:{sum(map(ord, name + address)) % 256:02x}"
    return {
        "ifname": name,
        "flags": flags,
        "mtu": mtu,
        "operstate": "UP" if carrier else "DOWN",
        "address": mac,
        "addr_info": info,
        **more,
    }


def host_key(number):
    blob = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32).decode()
    return f"/etc/ssh/ssh_host_ed25519_key.pub:ssh-ed25519 {blob} root@spark\n"


class Spark:
    """One Spark by what its commands print. Change `answers` (by argv) or `netdevs` before it is asked."""

    def __init__(self, number):
        self.number = number
        self.name = NAMES[number - 1]
        self.netdevs = {
            "enP7s7": netdev("enP7s7", f"192.168.1.{10 + number}/24", mtu=1500),
            **{name: netdev(name, f"192.168.{subnet}.{10 + number}/24") for name, _, subnet in RAILS},
        }
        self.answers = dict(_answers(number))

    def change(self, argv, old, new):
        """Another text in what a command prints."""
        argv = tuple(argv)
        assert old in self.answers[argv], old
        self.answers[argv] = self.answers[argv].replace(old, new)

    def channel(self):
        told = dict(self.answers)
        told[("ip", "-j", "-d", "addr", "show")] = json.dumps(list(self.netdevs.values()))
        for name, _, _ in RAILS:
            told.setdefault(("ethtool", name), "\tSpeed: 200000Mb/s\n\tDuplex: Full\n\tLink detected: yes\n")
            told.setdefault(
                ("ethtool", "--show-fec", name), "Configured FEC encodings: Auto\nActive FEC encoding: RS\n"
            )
            base = f"/sys/class/net/{name}/device/current_link"
            told.setdefault(
                ("grep", "-sH", ".", f"{base}_speed", f"{base}_width"),
                f"{base}_speed:32.0 GT/s PCIe\n{base}_width:4\n",
            )
        return BatchFake(self.name, told)


def _answers(number):
    return {
        ReadIdentity.argv: capture("identity.txt").replace("3f1e5b2c", f"{number:08d}"),
        ("lspci", "-Dnn"): capture("lspci.txt"),
        ("lspci", "-D", "-vv"): "",
        ReadHostKeys.argv: host_key(number),
        ReadLooseArp.argv: arp(
            all=0, default=0, enP7s7=0, **dict.fromkeys((name for name, _, _ in RAILS), 1)
        ),
        ReadGpuState.argv: capture("smi-state.csv"),
        ReadGpuProcesses.argv: "",
        ReadClock.argv: _now,
        ("cat", "/proc/meminfo"): capture("meminfo-idle.txt"),
        ReadFreeBlocks.argv: buddies(
            9000, 8000, 7000, 6000, 5000, 4000, 3000, 2000, 1500, 1200, 1000, 900, 1417, 782
        ),
        ReadKernel.argv: capture("kernel.txt"),
        ("docker", "info"): capture("docker-info.json"),
        ("timedatectl",): "NTP=yes\nNTPSynchronized=yes\n",
        ("cat", "/proc/self/limits"): capture("limits.txt"),
        ("prlimit",): "MEMLOCK unlimited unlimited\n",
        ("id",): "uid=1000(nvidia) gid=1000(nvidia) groups=1000(nvidia),27(sudo),999(docker)\n",
        ("ss",): "LISTEN 0 4096 0.0.0.0:22 0.0.0.0:*\nLISTEN 0 4096 127.0.0.1:11000 0.0.0.0:*\n",
        ("journalctl",): Completed(argv=("journalctl",), exit_code=1, stdout="", stderr=""),
        ("dpkg-query",): "ii |docker-ce|5:29.2.1\n",
        ("ls",): "/etc/cdi:\nnvidia.yaml\n",
        ReadHoldingProcesses.argv: '[[[900, 300000, 1000, "/usr/bin/gnome-shell", false]], 1000]',
        ReadServices.argv: (
            '{"systemd": true, "user_manager": true, "linger": true, "cron": true, "hottest": 51500,'
            ' "remove_ipc": true, "tools": ["rsync", "ib_write_bw"]}'
        ),
        ReadDisks.argv: json.dumps(
            {
                "hub": "/home/nvidia/.cache/huggingface/hub",
                "models": [],
                "places": {
                    "root": ["/", [3700 * 10**9, 3200 * 10**9, 1]],
                    "hub": ["/home/nvidia", [3700 * 10**9, 3200 * 10**9, 1]],
                    "shm": ["/dev/shm", [60 * 10**9, 60 * 10**9, 2]],
                },
            }
        ),
        ReadPythonEnvironment.argv: '{"python": "3.12.3", "executable": "/e", "sparkfleet": "0.1.0", "ray": "2.60.0"}',
        **_rdma(number),
    }


def _now(call):
    return Completed(argv=call.argv, exit_code=0, stdout=f"{time.time():.9f}\n", stderr="")


def _rdma(number):
    link = "".join(
        f"link {rdma}/1 state ACTIVE physical_state LINK_UP netdev {name}\n" for name, rdma, _ in RAILS
    )
    gids = (
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4\t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t----\t\t---\t---\n"
    )
    for name, rdma, subnet in RAILS:
        mapped = f"0000:0000:0000:0000:0000:ffff:c0a8:{subnet:02x}{10 + number:02x}"
        gids += f"{rdma}\t1\t2\t{mapped}\t192.168.{subnet}.{10 + number}\tv1\t{name}\n"
        gids += f"{rdma}\t1\t3\t{mapped}\t192.168.{subnet}.{10 + number}\tv2\t{name}\n"
    devices = "".join(
        f"hca_id:\t{rdma}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.45.4028\n"
        f"\tnode_guid:\t\t\t4cbb:4703:002d:1a1{index}\n\tsys_image_guid:\t\t\t4cbb:4703:002d:1a16\n"
        "\tvendor_id:\t\t\t0x02c9\n\tvendor_part_id:\t\t\t4129\n\thw_ver:\t\t\t\t0x0\n"
        "\tboard_id:\t\t\tNVD0000000087\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t4096 (5)\n"
        "\t\t\tlink_layer:\t\tEthernet\n\n"
        for index, (_, rdma, _) in enumerate(RAILS)
    )
    return {("rdma", "link"): link, ReadGidsOfKernel.argv: gids, ("ibv_devinfo",): devices}
