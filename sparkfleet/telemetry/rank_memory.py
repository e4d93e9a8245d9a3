"""Memory that each rank of this node takes: what its processes hold, and what the GPU's driver holds for them.

The two do not overlap on a GB10: allocations of CUDA are in no process's resident memory, and a container's limit and cgroup
do not count them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import number
from sparkfleet.hostfacts.gpu import ReadGpuProcesses
from sparkfleet.runtime.base import RankStatus
from sparkfleet.runtime.containers.container_tools import TOOLS
from sparkfleet.runtime.processes import Process, descendants, memory_bytes, process, processes
from sparkfleet.telemetry.local_command import run_here
from sparkfleet.values import Value


class RankMemory(Value):
    """Memory of one rank."""

    deployment: str
    generation: int
    replica: int
    rank: int
    bytes: int


def memory_of_ranks(ranks: Iterable[RankStatus]) -> tuple[RankMemory, ...]:
    """Memory of each rank whose engine runs. Those whose processes cannot be found are left out."""
    running = [(one.id, one.pid) for one in ranks if one.pid is not None and one.exit_code is None]
    if not running:
        return ()
    there, on_gpu = processes(), _on_gpu()
    found = []
    for id_, pid in running:
        own = _processes_of(pid, there)
        if own:
            held = memory_bytes(own) + sum(on_gpu.get(one.pid, 0) for one in own)
            found.append(RankMemory(**id_.model_dump(exclude={"fleet"}), bytes=held))
    return tuple(found)


def _processes_of(pid: int, there: Sequence[Process]) -> list[Process]:
    """An engine's process and its descendants. Those of a container descend from its first process, not from its tool's."""
    head = process(pid)
    if head is not None and (name := container_of(head.words)):
        head = process(_first_process(*name))
    return [head, *descendants(head.pid, there)] if head is not None else []


def container_of(words: Sequence[bytes]) -> tuple[str, str] | None:
    """Tool and name of the container that a command line runs; None if it runs none. Pure."""
    tool = PurePosixPath(words[0].decode(errors="replace")).name
    if tool not in TOOLS or b"--name" not in words[:-1]:
        return None
    return tool, words[words.index(b"--name") + 1].decode(errors="replace")


def _first_process(tool: str, name: str) -> int:
    """Pid of a container's first process; 0 if it has none or the tool does not answer."""
    try:
        code, out, _ = run_here((tool, "inspect", "--format", "{{.State.Pid}}", name))
    except (OSError, subprocess.SubprocessError):
        return 0
    return 0 if code else int(number(out) or 0)


def _on_gpu() -> Mapping[int, int]:
    """Bytes that the driver holds, by pid; empty without a GPU, or if it does not answer."""
    try:
        found = ReadGpuProcesses.answer(*run_here(ReadGpuProcesses.argv))
    except (FactError, OSError, subprocess.SubprocessError):
        return {}
    return {one.pid: one.memory or 0 for one in found}
