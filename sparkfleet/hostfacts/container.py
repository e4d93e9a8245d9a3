"""Container tools: Docker and Podman, with the right to use them and their access to the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sparkfleet.hostfacts.fact import MOST_CHARACTERS, Fact, failed, json_of, text, too_long
from sparkfleet.values import Value

Tool = Literal["docker", "podman"]
"""Name of a container tool."""

_REFUSED = re.compile(r"permission denied", re.IGNORECASE)
_MISSING = 127


CONTAINERD_STORE = "/var/lib/containerd"
"""Directory of the images of Docker with containerd's store (29 and later, newly installed), as its packages run containerd;
`DockerRootDir` has none of them."""
CONTAINERD_DRIVER = "io.containerd.snapshotter"
"""In `DriverStatus` of `docker info`, if it has that store."""


class ContainerTool(Value):
    """One container tool of a node."""

    tool: Tool
    version: str = ""
    """Of the server; "" if it does not answer."""
    usable: bool
    """True if this user may run containers with it."""
    why_not: str = ""
    """The tool's own error, if it is not usable."""
    root: str = ""
    """Its directory of images."""
    runtimes: tuple[str, ...] = ()

    @property
    def nvidia_runtime(self) -> bool:
        """True if the NVIDIA runtime is registered, which `--gpus all` needs."""
        return "nvidia" in self.runtimes


class ReadDocker(Fact[ContainerTool | None]):
    """Reads Docker's state; None if it is not installed. A refusal of the server is kept in its own words."""

    argv = ("docker", "info", "--format", "{{json .}}")
    fine = (0, 1)

    @staticmethod
    def parse(output: str) -> ContainerTool:
        """The JSON that `docker info` prints, with or without a server behind it."""
        info = json_of(output, dict, "Docker")
        errors = info.get("ServerErrors")
        problem = text("; ".join(str(one) for one in errors[:4])) if isinstance(errors, list) else ""
        version = text(info.get("ServerVersion") or "")
        return ContainerTool(
            tool="docker",
            version=version,
            usable=bool(version) and not problem,
            why_not=problem or ("" if version else "the server does not answer"),
            root=text(info.get("DockerRootDir") or ""),
            runtimes=_names(info.get("Runtimes")),
        )

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> ContainerTool | None:
        """Accepts also a missing tool, and an error that is only on stderr."""
        if exit_code == _MISSING:
            return None
        if exit_code in cls.fine and stdout.lstrip().startswith("{") and len(stdout) <= MOST_CHARACTERS:
            return cls.parse(stdout)
        if stderr.strip():
            return ContainerTool(tool="docker", usable=False, why_not=text(stderr.strip()))
        raise failed(cls.argv, exit_code, stdout)


class ReadPodman(Fact[ContainerTool | None]):
    """Reads Podman's state; None if it is not installed."""

    argv = ("podman", "info", "--format", "json")

    @staticmethod
    def parse(output: str) -> ContainerTool:
        """The JSON that `podman info` prints."""
        info = json_of(output, dict, "Podman")
        host, store, version = (_section(info, name) for name in ("host", "store", "version"))
        return ContainerTool(
            tool="podman",
            version=text(version.get("Version") or version.get("APIVersion") or ""),
            usable=True,
            root=text(store.get("graphRoot") or ""),
            runtimes=(text(_section(host, "ociRuntime").get("name") or ""),),
        )

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> ContainerTool | None:
        """Accepts also a missing tool, and an exit code other than 0."""
        if exit_code == _MISSING:
            return None
        if exit_code != 0:
            _, _, error = stderr.rpartition("Error: ")  # after warnings, a line each
            return ContainerTool(
                tool="podman", usable=False, why_not=text(error.strip() or f"exit code {exit_code}")
            )
        if len(stdout) > MOST_CHARACTERS:
            raise too_long(cls.argv, len(stdout))
        return cls.parse(stdout)


def refused(tool: ContainerTool) -> bool:
    """True if the tool is installed and works, but not for this user."""
    return not tool.usable and _REFUSED.search(tool.why_not) is not None


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, dict | list):
        return ()
    return tuple(sorted(text(name) for name in list(value)[:50]))


def _section(info: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = info.get(name)
    return value if isinstance(value, dict) else {}


class ReadCdi(Fact[tuple[str, ...]]):
    """NVIDIA's descriptions of devices (CDI), by path; with one of them no NVIDIA runtime is needed."""

    argv = ("ls", "-1", "/etc/cdi", "/var/run/cdi")
    fine = (0, 1, 2)

    @staticmethod
    def parse(output: str) -> tuple[str, ...]:
        """File names below the directory lines that `ls` prints."""
        lines = (line.strip() for line in output.splitlines()[:1000])
        return tuple(text(line) for line in lines if line.startswith("nvidia") and not line.endswith(":"))
