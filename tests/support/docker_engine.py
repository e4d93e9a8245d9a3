"""A Docker engine of the tests' own: containerd and dockerd with a store and a socket, beside any other of the machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

START_S = 60.0
END_S = 60.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def cannot_run() -> str:
    """Reason why no Docker engine can be started here; "" if one can."""
    missing = [
        name for name in ("docker", "dockerd", "containerd", "runc") if not shutil.which(name, path=PATH)
    ]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "a Docker engine of the tests' own needs root"


class DockerEngine:
    """A Docker engine as packages install it: containerd is a service of its own, and outlives dockerd.

    It has no bridge and changes no firewall: sparkfleet's containers use the host's network. Its mounts are in a namespace
    of its services, and end with them.

    Args:
        directory: for all that it writes. Its path has to be short: names of sockets have 108 characters at most.
        within: command before those of the services, such as one that enters a node's namespaces.
    """

    def __init__(self, directory: Path, *, within: Sequence[str] = ()) -> None:
        self._directory = directory
        self._within = within
        self._mounts: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Value of `DOCKER_HOST`."""
        return f"unix://{self._directory}/docker.sock"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Output and exit code of its client."""
        return subprocess.run(
            ("docker", "--host", self.url, *words), capture_output=True, text=True, check=False, timeout=120
        )

    def start(self) -> None:
        """Starts what does not run of it, and returns once it answers.

        Raises:
            RuntimeError: it does not answer, with the end of its log.
        """
        here = self._directory
        if self._mounts is None:
            # One process keeps the namespace: containerd's shims and dockerd have to see the same mounts.
            kept = ("unshare", "--mount", "--propagation=slave", "sleep", "infinity")
            self._mounts = subprocess.Popen((*self._within, *kept), start_new_session=True)
            _until_moved(self._mounts.pid)
        if self._containerd is None:
            config = f'version = 2\nroot = "{here}/containerd"\nstate = "{here}/run"\n'
            config += f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{here}/c.sock"\n'
            (here / "containerd.toml").write_text(config)
            self._containerd = self._service("containerd", f"--config={here}/containerd.toml")
        if self._dockerd is None:
            self._dockerd = self._service(
                *("dockerd", f"--host={self.url}", f"--containerd={here}/c.sock", f"--pidfile={here}/pid"),
                *(f"--data-root={here}/data", f"--exec-root={here}/exec"),
                *("--iptables=false", "--ip6tables=false", "--bridge=none"),
            )
        until = time.monotonic() + START_S
        while self.run("version").returncode != 0:
            if self._dockerd.poll() is not None or time.monotonic() > until:
                raise RuntimeError((here / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    def end_dockerd(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends dockerd alone: by SIGTERM it ends its containers first, by SIGKILL they go on."""
        if self._dockerd is not None:
            self._dockerd.send_signal(number)
            self._dockerd.wait(END_S)
            self._dockerd = None

    def remove(self) -> None:
        """Ends its containers, whatever has been done to it, and its services."""
        if self._dockerd is None:
            self.start()
        if left := self.run("ps", "--all", "--quiet").stdout.split():
            self.run("rm", "--force", "--volumes", *left)
        self.end_dockerd()
        if self._containerd is not None:
            self._containerd.terminate()
            self._containerd.wait(END_S)
        if self._mounts is not None:
            self._mounts.kill()
            self._mounts.wait()

    def _service(self, *argv: str) -> subprocess.Popen[bytes]:
        assert self._mounts is not None
        entered = ("nsenter", f"--mount=/proc/{self._mounts.pid}/ns/mnt")
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                (*self._within, *entered, *argv),
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"PATH": PATH},
            )


def _until_moved(pid: int) -> None:
    """Waits until the process has a mount namespace of its own."""
    own, until = Path("/proc/self/ns/mnt").readlink(), time.monotonic() + START_S
    while (
        Path(f"/proc/{pid}/ns/mnt").readlink() == own
        or b"infinity" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ):
        if time.monotonic() > until:
            raise RuntimeError("unshare has made no mount namespace")
        time.sleep(0.01)
