"""The first process of a simulated node: mounts its file system, starts sshd and cron, reaps, updates /sys/class/infiniband.

Started as `init.py LAB NODE SPEC READY`, in namespaces of its own; SPEC is a JSON file (see `Spec`), READY the number of a
file descriptor that receives "ready" or the error.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sparkfleet.lab.inside import node_settings
from sparkfleet.lab.inside.mounts import MS_BIND, furnish, mount
from sparkfleet.lab.inside.sysfs import count, refresh, refresh_links

INFINIBAND = Path("/sys/class/infiniband")
LINKS = Path("/run/lab/links")
"""Files that are mounted over some of /sys/class/net."""
_SSHD_PID = Path("/run/sshd.pid")
"""sshd writes it as soon as it listens and handles signals."""
_SSHD_S = 60.0
_LINK_EVENTS = 1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR."""
_TICK_S = 1.0
"""Seconds between updates of byte counters, for which the kernel has no event."""


@dataclass(frozen=True)
class SimulatedNodeSpec:
    """Settings that the lab passes to a node."""

    hostname: str
    path: str
    private: dict[str, str]
    hosts: list[str]
    shares: list[str]
    veiled: list[str]


@dataclass
class Service:
    """A daemon that is started again if it ends, as by systemd."""

    argv: tuple[str, ...]
    log: str
    pid: int = 0
    started: float = field(default=0.0)

    def start(self, path: str) -> None:
        """Starts it in the foreground, with its output in a log of the node."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": path, "LANG": "C.UTF-8"}, cwd="/", start_new_session=True,
            )  # fmt: skip
        self.pid, self.started = process.pid, time.monotonic()
        process.returncode = 0  # reaped below, with all other processes that init inherits


def main(argv: list[str]) -> None:
    """Boots the node, reports it, and runs until the node ends."""
    ready = int(argv[4])
    try:
        spec = SimulatedNodeSpec(**json.loads(Path(argv[3]).read_text()))
        _boot(spec)
        services = _services()
        for service in services:
            service.start(spec.path)
        events = _link_events()
        _follow(changed=True)
        for path in LINKS.glob("*/*"):
            mount(str(path), Path("/sys/class/net", path.parent.name, path.name), flags=MS_BIND)
        _await_sshd(services[0])
    except Exception:
        os.write(ready, traceback.format_exc().encode())
        raise
    os.write(ready, b"ready")
    os.close(ready)
    _stay(services, spec.path, events)


def _boot(spec: SimulatedNodeSpec) -> None:
    socket.sethostname(spec.hostname)
    furnish(spec.private, spec.hosts, spec.shares, spec.veiled)
    for directory in ("/run/sshd", "/run/lock", "/run/user", "/run/user/1000"):
        Path(directory).mkdir(parents=True, exist_ok=True)
    os.chown("/run/user/1000", 1000, 1000)
    os.chmod("/run/user/1000", 0o700)
    os.chmod("/run/lock", 0o1777)  # noqa: S103 - as on every Linux
    _unlock_memory(node_settings.load().text("memlock"))


def _unlock_memory(knob: str) -> None:
    """Sets the limit that sessions inherit. It stays unchanged on a host that denies CAP_SYS_RESOURCE."""
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        if knob == "unlimited":
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            resource.setrlimit(
                resource.RLIMIT_MEMLOCK, (min(int(knob) * 1024, most if most > 0 else 1 << 62), most)
            )
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))


def _services() -> list[Service]:
    return [
        Service(("/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config"), "/var/log/auth.log"),
        Service(("/usr/sbin/cron", "-f"), "/var/log/cron.log"),
    ]


def _await_sshd(sshd: Service) -> None:
    """Waits until sshd listens, because clients connect as soon as a node is reported up. Raises RuntimeError."""
    end = time.monotonic() + _SSHD_S
    while not (_SSHD_PID.exists() and _SSHD_PID.read_text()):
        _reap()
        if not Path(f"/proc/{sshd.pid}").exists() or time.monotonic() > end:
            raise RuntimeError(f"sshd does not listen; {sshd.log} of the node has the reason")
        time.sleep(0.01)


def _link_events() -> socket.socket:
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    events.bind((0, _LINK_EVENTS))
    events.setblocking(False)
    return events


def _stay(services: list[Service], path: str, events: socket.socket) -> None:
    """Reaps children, restarts daemons, follows the links. Ends only with the node."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(node_settings.REFRESH, lambda *_: None)
    while True:
        _reap()
        _restart(services, path)
        changed = events.fileno() in select.select([events.fileno(), woken], [], [], _TICK_S)[0]
        _drain(events, woken)
        try:
            _follow(changed)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"infiniband: {error}", file=sys.stderr, flush=True)


def _follow(changed: bool) -> None:
    asked = node_settings.token_of(node_settings.ASKED)
    now = (asked, *_version_of_settings())
    if changed or now != _followed[0]:
        settings = node_settings.load()
        refresh(INFINIBAND, settings)
        refresh_links(LINKS, settings)
        node_settings.ANSWERED.write_text(asked)
        _followed[0] = now  # not before: what failed is tried again
    count(INFINIBAND)


_followed: list[tuple[str, int, int]] = [("", 0, 0)]


def _version_of_settings() -> tuple[int, int]:
    """Inode and time of the file, which is replaced: two changes in one tick of the kernel's clock have one time."""
    found = node_settings.STATE.stat()
    return found.st_ino, found.st_mtime_ns


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _restart(services: list[Service], path: str) -> None:
    for service in services:
        if not Path(f"/proc/{service.pid}").exists() and time.monotonic() - service.started > _TICK_S:
            service.start(path)


def _drain(events: socket.socket, woken: int) -> None:
    for descriptor in (events.fileno(), woken):
        # Ends if nothing is left to read, or events were lost (ENOBUFS), for which the refresh makes up.
        with suppress(OSError):
            while os.read(descriptor, 65536):
                pass
