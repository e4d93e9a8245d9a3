"""One launcher for all device commands: argv[0] selects the command.

Their output replays captures of real machines; values of rails follow the node's real netdevs and its knobs. In a lab that
was made of a bundle, commands whose output is in the bundle print that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

from sparkfleet.lab.inside import node_settings, replay
from sparkfleet.lab.inside.node_settings import REAL, NodeSettings

SimulatedCommand = Callable[[list[str], NodeSettings], int]

_MODULES = {
    "nvidia-smi": "nvidia_smi:nvidia_smi",
    "ibdev2netdev": "rdma:ibdev2netdev",
    "rdma": "rdma:rdma",
    "ibv_devinfo": "rdma:ibv_devinfo",
    "ibv_devices": "rdma:ibv_devices",
    "ibstat": "rdma:ibstat",
    "show_gids": "rdma:show_gids",
    "ethtool": "ethernet:ethtool",
    "ip": "ethernet:ip",
    "lspci": "pci:lspci",
    "dmesg": "pci:dmesg",
    "journalctl": "pci:journalctl",
    "dmidecode": "pci:dmidecode",
    "ib_write_bw": "perftest:bandwidth",
    "ib_send_bw": "perftest:bandwidth",
    "ib_write_lat": "perftest:latency",
    "ib_send_lat": "perftest:latency",
    "date": "system:date",
    "timedatectl": "system:timedatectl",
    "prlimit": "system:prlimit",
    "lsb_release": "system:lsb_release",
}


def main(argv: list[str]) -> int:
    """Runs the command of this name. Returns its exit code."""
    given = [os.path.basename(argv[0]), *argv[1:]]
    try:
        captured = replay.answer(given)
        code = _simulated(given) if captured is None else captured
        sys.stdout.flush()
    except BrokenPipeError:
        # `nvidia-smi | head -1` is not an error; the rest of the output is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    return code


def _simulated(given: list[str]) -> int:
    """Runs the lab's own command of this name, or the system's if the lab has none."""
    if given[0] not in _MODULES:
        return pass_on(given[0], given[1:])
    module, _, function = _MODULES[given[0]].partition(":")
    command: SimulatedCommand = getattr(import_module(f"sparkfleet.lab.inside.{module}"), function)
    return command(given, node_settings.load())


def pass_on(name: str, arguments: list[str]) -> int:
    """Executes the system's own command of that name, if there is one outside of the lab's directory.

    One in /usr/local/bin comes first, as on any machine: a test of a fault puts its own there.
    """
    own = () if name.startswith("python") else ("/usr/local/bin",)
    for directory in (*own, REAL, "/usr/sbin"):
        path = f"{directory}/{name}"
        if os.access(path, os.X_OK):
            sys.stdout.flush()
            if name.startswith("python"):
                # Python finds its library by its own path: that of python3.N is not replaced in /usr/bin.
                path = f"/usr/bin/{os.path.basename(os.path.realpath(path))}"
            os.execv(path, [name, *arguments])  # noqa: S606
    print(f"{name}: command not found", file=sys.stderr)
    return 127
