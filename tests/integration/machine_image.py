"""Root file system of machines that boot: this machine's own distribution, from the mirror of its apt, kept in the cache."""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

USER, UID = "nvidia", 1000
PASSWORD = "a-password-of-tests"
PACKAGES = (
    *("ca-certificates", "dbus", "dbus-user-session", "iproute2", "iputils-arping", "iputils-ping", "kmod"),
    *("libpam-systemd", "netplan.io", "network-manager", "nftables", "openssh-server", "polkitd", "procps"),
    *("python3", "rsync", "sudo", "systemd", "systemd-sysv", "udev"),
)  # fmt: skip
UNUSED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "dpkg-db-backup.timer",
)
"""Units that would work on the test's time."""
MAKE_S = 900


def base():
    """The file system. Skips with the reason if it cannot be made, or not be booted, on this machine."""
    if os.geteuid() != 0:
        pytest.skip("namespaces and mounts of a machine need root")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if missing := [
        name for name in ("debootstrap", "podman", "runc", "nsenter") if not shutil.which(name, path=path)
    ]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    suite, mirror = _suite()
    mark = hashlib.sha256(repr((suite, mirror, PACKAGES, UNUSED, PASSWORD)).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkfleet" / "test-machines"
    place = cache / mark
    if not place.exists():
        part = cache / f"{mark}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            _make(part, suite, mirror)
            part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return place


def _suite():
    """Code name of this machine's release, and its mirror by apt's settings; they need no network."""
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    asked = ("apt-get", "indextargets", "--format", "$(CODENAME) $(SUITE) $(SITE)", "Created-By: Packages")
    if shutil.which("apt-get"):
        for line in _run(*asked).splitlines():
            *names, site = line.split()
            if suite in names:
                return suite, site.rstrip("/")
    pytest.skip("apt of this machine has no mirror of its own release")


def _make(root, suite, mirror):
    _run(
        "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(root), mirror,
        timeout=MAKE_S,
    )  # fmt: skip
    inside = ("chroot", str(root))
    _run(
        *inside,
        "useradd",
        "--create-home",
        "--uid",
        str(UID),
        "--shell",
        "/bin/bash",
        "--groups",
        "sudo",
        USER,
    )
    _run(*inside, "chpasswd", given=f"{USER}:{PASSWORD}\n")
    (root / "root").chmod(0o711)  # the interpreter of the tests may be shown below it
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    for unit in UNUSED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)


def _run(*argv, given="", timeout=120):
    done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout
