"""Container tools: whether Docker or Podman is there, can be used by this user, and can give a container the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sparkfleet.hostfacts.fact import MOST_CHARACTERS, Fact, failed, json_of, text, too_long
from sparkfleet.values import Value

Tool = Literal["docker", "podman"]

_REFUSED = re.compile(r"permission denied", re.IGNORECASE)
_MISSING = 127


class ContainerTool(Value):
    """One container tool of a node."""

    tool: Tool
    version: str = ""
    """Of the server; "" if it does not answer."""
    usable: bool
    """Whether this user may run containers with it."""
    why_not: str = ""
    """What it says where it is not usable."""
    root: str = ""
    """Where it keeps images."""
    runtimes: tuple[str, ...] = ()
    cdi_directories: tuple[str, ...] = ()
    """Where descriptions of devices (CDI) are looked for; empty if CDI is off or not known of."""

    @property
    def nvidia_runtime(self) -> bool:
        """True if the NVIDIA runtime is registered, which `--gpus all` needs."""
        return "nvidia" in self.runtimes


class ReadDocker(Fact[ContainerTool | None]):
    """Docker. None if it is not installed; what the server refuses is told in its own words."""

    argv = ("docker", "info", "--format", "{{json .}}")
    fine = (0, 1)

    @staticmethod
    def parse(output: str) -> ContainerTool:
        """The JSON that `docker info` prints, with or without a server behind it."""
        info = json_of(output, dict, "Docker")
        errors = info.get("ServerErrors")
        said = text("; ".join(str(one) for one in errors[:4])) if isinstance(errors, list) else ""
        version = text(info.get("ServerVersion") or "")
        return ContainerTool(
            tool="docker",
            version=version,
            usable=bool(version) and not said,
            why_not=said or ("" if version else "the server does not answer"),
            root=text(info.get("DockerRootDir") or ""),
            runtimes=_names(info.get("Runtimes")),
            cdi_directories=_names(info.get("CDISpecDirs")),
        )

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> ContainerTool | None:
        """Also without the tool, and where only stderr says why not."""
        if exit_code == _MISSING:
            return None
        if exit_code in cls.fine and stdout.lstrip().startswith("{") and len(stdout) <= MOST_CHARACTERS:
            return cls.parse(stdout)
        if stderr.strip():
            return ContainerTool(tool="docker", usable=False, why_not=text(stderr.strip()))
        raise failed(cls.argv, exit_code, stdout)


class ReadPodman(Fact[ContainerTool | None]):
    """Podman. None if it is not installed."""

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
            # Podman always speaks CDI, and looks here unless told otherwise.
            cdi_directories=("/etc/cdi", "/var/run/cdi"),
        )

    @classmethod
    def answer(cls, exit_code: int, stdout: str, stderr: str) -> ContainerTool | None:
        """Also without the tool, and where it refuses."""
        if exit_code == _MISSING:
            return None
        if exit_code != 0:
            return ContainerTool(
                tool="podman", usable=False, why_not=text(stderr.strip() or f"exit code {exit_code}")
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
        """File names below the directories that `ls` names."""
        lines = (line.strip() for line in output.splitlines()[:1000])
        return tuple(text(line) for line in lines if line.startswith("nvidia") and not line.endswith(":"))
