"""Processes that use most memory on a node, with a mark on those of sparkfleet."""

from __future__ import annotations

from sparkfleet.hostfacts.fact import Fact, json_of, text, unexpected_output, whole
from sparkfleet.units import KIB
from sparkfleet.values import Value

_PROBE = r"""
import functools, json, os, re, subprocess
@functools.cache
def containers():
    argv = ['docker', 'ps', '-q', '--no-trunc', '--filter', 'label=sparkfleet.fleet']
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.decode('ascii', 'replace').split()
def contained(pid):
    # A docker container's processes are root's, so that this user may not read their label; their cgroup has its id.
    try:
        with open(f'/proc/{pid}/cgroup') as f:
            ids = re.findall('[0-9a-f]{64}', f.read(4096))
    except (OSError, ValueError):
        return None
    return True if ids and ids[-1] in containers() else None
found = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        with open(f'/proc/{pid}/status', 'rb') as f:
            lines = dict(line.split(b':', 1) for line in f.read().splitlines() if b':' in line)
        kib = int(lines.get(b'VmRSS', b'0').split()[0])
        if kib < 1024:
            continue
        with open(f'/proc/{pid}/cmdline', 'rb') as f:
            words = f.read(160).replace(b'\0', b' ').decode('utf-8', 'replace').strip()
        uid = int(lines[b'Uid'].split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        continue
    try:
        with open(f'/proc/{pid}/environ', 'rb') as f:
            ours = any(e.startswith(b'SPARKFLEET_') for e in f.read().split(b'\0'))
    except OSError:
        ours = contained(pid)
    found.append([int(pid), kib, uid, words, ours])
found.sort(key=lambda one: -one[1])
ours = [one for one in found if one[4]]
print(json.dumps([found[:20] + [one for one in ours if one not in found[:20]][:100], os.getuid()]))
"""


class HoldingProcess(Value):
    """A process and the memory that it uses."""

    pid: int
    resident: int
    """Resident bytes, without those that the GPU's driver holds for it."""
    uid: int
    command: str
    ours: bool | None
    """True if sparkfleet started it, by the label in its environment or of its container; None if neither may be read."""


class ReadHoldingProcesses(Fact[tuple[HoldingProcess, ...]]):
    """Reads the twenty processes that use most memory, and all that sparkfleet started."""

    argv = ("python3", "-I", "-S", "-c", _PROBE)

    @staticmethod
    def parse(output: str) -> tuple[HoldingProcess, ...]:
        """Processes from a JSON pair: the list, and the reader's user id."""
        found = json_of(output, list, "the processes")
        if len(found) != 2 or not isinstance(found[0], list):
            raise unexpected_output("the processes", output)
        return tuple(_process(one, output) for one in found[0][:500])


def _process(one: object, output: str) -> HoldingProcess:
    if not isinstance(one, list) or len(one) != 5 or not isinstance(one[3], str):
        raise unexpected_output("the processes", output)
    pid, kib, uid = (whole(number) for number in one[:3])
    ours = one[4]
    if pid is None or kib is None or uid is None or not (ours is None or isinstance(ours, bool)):
        raise unexpected_output("the processes", output)
    return HoldingProcess(pid=pid, resident=kib * KIB, uid=uid, command=text(one[3]), ours=ours)
