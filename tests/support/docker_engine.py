"""A Docker engine of the tests' own: containerd and dockerd with a store and a socket, beside any other of the machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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


def containerd_config(at: Path) -> str:
    """Contents of `containerd.toml` in the engine's directory."""
    return (
        f'version = 2\nroot = "{at}/containerd"\nstate = "{at}/run"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{at}/c.sock"\n'
    )


def containerd_argv(at: Path) -> tuple[str, ...]:
    """Command of containerd, which reads that file."""
    return ("containerd", f"--config={at}/containerd.toml")


def dockerd_argv(at: Path, url: str) -> tuple[str, ...]:
    """Command of dockerd, which listens at `url` and has no bridge: sparkfleet's containers use the host's network."""
    return (
        *("dockerd", f"--host={url}", f"--containerd={at}/c.sock", f"--pidfile={at}/pid"),
        *(f"--data-root={at}/data", f"--exec-root={at}/exec"),
        *("--iptables=false", "--ip6tables=false", "--bridge=none"),
    )


@contextmanager
def running(directory: Path) -> Iterator[DockerEngine]:
    """An engine that runs, removed afterwards. Skips with the reason if none starts here."""
    if why := cannot_run():
        pytest.skip(why)
    engine = DockerEngine(directory)
    try:
        engine.start()
    except RuntimeError as error:
        pytest.skip(f"no Docker engine starts here: {error}")
    try:
        yield engine
    finally:
        engine.remove()


class DockerEngine:
    """A Docker engine as packages install it: containerd is a service of its own, and outlives dockerd.

    It changes no firewall. Its mounts are in a namespace of its services, and end with them.

    Args:
        directory: for all that it writes. Its path has to be short: names of sockets have 108 characters at most.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
            self._mounts = subprocess.Popen(kept, start_new_session=True)
            _until_moved(self._mounts.pid)
        if self._containerd is None:
            (here / "containerd.toml").write_text(containerd_config(here))
            self._containerd = self._service(*containerd_argv(here))
        if self._dockerd is None:
            self._dockerd = self._service(*dockerd_argv(here, self.url))
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
                (*entered, *argv),
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
