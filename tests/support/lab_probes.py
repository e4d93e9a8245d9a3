"""Probes of a lab of two Sparks."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from sparkfleet.lab import Lab

RAILS = ["192.168.100.11", "192.168.101.11"]
"""Addresses of spark2 on the rails of its cable."""


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
