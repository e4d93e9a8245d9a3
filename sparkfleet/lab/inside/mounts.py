"""File system of a simulated node: the host's programs, read-only, and private places to write to.

Runs once, in the node's own mount namespace, before all other processes of the node.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sparkfleet.lab.inside.node_settings import REAL, TOOLS

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
_HARDLY = MS_NOSUID | MS_NODEV
_WITHOUT = ("/usr/sbin/netplan",)
"""Programs of the host that cannot work in a node, because no networkd runs there."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str | Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError with the target's name."""
    arguments = (source, str(target), kind)
    done = _LIBC.mount(*(a.encode() for a in arguments), ctypes.c_ulong(flags), data.encode() or None)
    if done:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(target))


class HeldMount:
    """A path of the host that stays reachable after a mount over it."""

    def __init__(self, path: str | Path) -> None:
        self.directory = Path(path).is_dir()
        self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def bind(self, target: str | Path, flags: int = 0) -> None:
        """Mounts it at `target`, which is created if it is missing."""
        self._make(Path(target))
        mount(f"/proc/self/fd/{self._descriptor}", target, "", MS_BIND | MS_REC)
        if flags:
            mount("", target, "", MS_BIND | MS_REMOUNT | flags)

    def _make(self, target: Path) -> None:
        if target.exists():
            return
        (target if self.directory else target.parent).mkdir(parents=True, exist_ok=True)
        if not self.directory:
            target.touch()


def furnish(
    private: Mapping[str, str], hosts: Iterable[str], shares: Iterable[str], veiled: Iterable[str]
) -> None:
    """Builds the node's file system: `private` directories of the host by their path in the node, `shares` at their own.

    `veiled` directories of the host are hidden behind empty ones; `hosts` stay visible below private ones.
    """
    through = {path: HeldMount(path) for path in hosts}
    held = {place: HeldMount(path) for place, path in private.items()}
    shared = {path: HeldMount(path) for path in shares}
    for place in veiled:
        _tmpfs(place, "1777" if place in ("/tmp", "/var/tmp") else "0711" if place == "/root" else "0755")  # noqa: S108
    for path, share in shared.items():
        share.bind(path, MS_RDONLY)
    # A private directory would hide shares below it, so private ones are mounted by depth, /etc before /etc/x.
    for place in sorted(place for place in held if not place.startswith("/sys/")):
        held[place].bind(place)
    for path, directory in through.items():
        directory.bind(path, MS_RDONLY)
    _devices()
    _kernel_files()
    for place in (place for place in held if place.startswith("/sys/")):
        held[place].bind(place)
    mount("", "/", "", MS_BIND | MS_REMOUNT | MS_RDONLY)
    _programs()


def _programs() -> None:
    """Mounts the device commands in /usr/bin, too: cron's PATH has only that, and some programs call them by full path."""
    HeldMount("/usr/bin").bind(REAL)
    mount("overlay", "/usr/bin", "overlay", MS_RDONLY, f"lowerdir={TOOLS}:{REAL}")
    for program in filter(os.path.exists, _WITHOUT):
        HeldMount("/dev/null").bind(program)  # not executable, so not found


def _tmpfs(place: str, mode: str) -> None:
    if Path(place).is_dir():
        mount("tmpfs", place, "tmpfs", _HARDLY, f"mode={mode}")


def _devices() -> None:
    held = [(name, HeldMount(f"/dev/{name}")) for name in _DEVICES if Path("/dev", name).exists()]
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=0755")
    for name, device in held:
        device.bind(f"/dev/{name}")
    for name in ("pts", "shm", "mqueue", "infiniband"):
        Path("/dev", name).mkdir()
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
    mount("tmpfs", "/dev/shm", "tmpfs", _HARDLY, "mode=1777")  # noqa: S108
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        Path("/dev", name).symlink_to(target)
    for name in ("uverbs0", "uverbs1", "uverbs2", "uverbs3", "rdma_cm"):
        Path("/dev/infiniband", name).touch()
        Path("/dev/infiniband", name).chmod(0o666)


def _kernel_files() -> None:
    """A /sys of this network namespace, in which classes can be added: sysfs itself has no mkdir."""
    mount("sysfs", "/sys", "sysfs", MS_RDONLY | _HARDLY | MS_NOEXEC)
    held = [(entry.name, HeldMount(entry)) for entry in Path("/sys/class").iterdir()]
    mount("tmpfs", "/sys/class", "tmpfs", _HARDLY, "mode=0755")
    for name, entry in held:
        entry.bind(f"/sys/class/{name}")
    # Containers need the one hierarchy that a Spark has; a host with others has this one, too.
    with suppress(OSError):
        mount("cgroup2", "/sys/fs/cgroup", "cgroup2", _HARDLY | MS_NOEXEC)
    for name in ("infiniband", "dmi/id"):
        Path("/sys/class", name).mkdir(parents=True, exist_ok=True)
