"""Paths of a lab: a registry in /run, which a reboot clears as it clears the lab, and the lab's directory.

Changes to a lab are made under its lock, the choice of its subnet under the common lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.layout import CableOrder, Layout, Topology, check_name, make_layout

REGISTRY = Path("/run/sparkfleet-lab")
HOME = Path("/var/lib/sparkfleet-lab")
USER = "nvidia"
UID = 1000


@dataclass(frozen=True)
class LabProcess:
    """A process by its id and start time, so that a later one with the same id is not confused with it."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """True if it still exists and is not a zombie."""
        return start_time(self.pid) == self.started


@dataclass(frozen=True)
class State:
    """One lab: its request, its directory, and its running processes."""

    name: str
    directory: str
    subnet: int
    count: int
    topology: str
    shares: tuple[str, ...] = ()
    complete: bool = False
    inits: dict[str, LabProcess] = field(default_factory=dict)
    """First process of each node that is powered on, as the host numbers it."""
    pulled: tuple[str, ...] = ()
    """Rails that `cut` has pulled, by `network.rail_key`."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Knobs that were set, by node."""
    keeper: LabProcess | None = None
    cabling: tuple[CableOrder, ...] = ()
    """Its cables, if the topology is that of a captured fleet."""
    head: int = 1
    """Number of the node that its inventory names as head."""
    replays: dict[str, int] = field(default_factory=dict)
    """Number of commands that print the output of a bundle, by node."""

    @property
    def powered(self) -> tuple[str, ...]:
        """Nodes that are on."""
        return tuple(node for node, process in self.inits.items() if process.alive)

    @property
    def layout(self) -> Layout:
        """The names, addresses and cables."""
        return make_layout(self.name, self.count, Topology(self.topology), self.subnet, self.cabling)

    def path(self, *parts: str) -> Path:
        """A file of the lab."""
        return Path(self.directory, *parts)

    def node_path(self, node: str, *parts: str) -> Path:
        """A file of one node of the lab."""
        return Path(self.directory, "nodes", node, *parts)


def start_time(pid: int) -> str | None:
    """Start time of a process, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return after_name[19] if after_name[0] != "Z" else None


def of_process(pid: int) -> LabProcess:
    """The process that has this id now. Raises LabError."""
    started = start_time(pid)
    if started is None:
        raise LabError(f"There is no process {pid}.")
    return LabProcess(pid, started)


def load(name: str) -> State:
    """The lab of that name. Raises LabError if there is none."""
    found = find(name)
    if found is None:
        raise LabError(f"There is no lab {name!r}.", do=f"`scripts/lab up --name {name}` makes it.")
    return found


def find(name: str) -> State | None:
    """The lab of that name, or None."""
    try:
        return _parsed(json.loads((REGISTRY / f"{check_name(name)}.json").read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise LabError(
            f"{REGISTRY / name}.json cannot be read: {error}.",
            do=f"`scripts/lab down --name {name}` clears it.",
        ) from None


def _parsed(given: dict[str, Any]) -> State:
    inits = {node: LabProcess(**process) for node, process in given.pop("inits").items()}
    keeper = given.pop("keeper")
    shares, pulled = (tuple(given.pop(name)) for name in ("shares", "pulled"))
    cabling = tuple(map(_order, given.pop("cabling", ())))
    return State(
        **given,
        shares=shares,
        pulled=pulled,
        inits=inits,
        keeper=LabProcess(**keeper) if keeper else None,
        cabling=cabling,
    )


def _order(given: dict[str, Any]) -> CableOrder:
    rails = tuple(tuple((netdev, address) for netdev, address in rail) for rail in given["rails"])
    return CableOrder(tuple(given["nodes"]), given["switch"], rails)


def save(state: State) -> State:
    """Saves a lab's state, atomically."""
    REGISTRY.mkdir(mode=0o755, parents=True, exist_ok=True)
    replace_file(REGISTRY / f"{state.name}.json", json.dumps(asdict(state)))
    return state


def forget(state: State) -> None:
    """Removes a lab's directory, and then its entry."""
    shutil.rmtree(state.directory, ignore_errors=True)
    (REGISTRY / f"{state.name}.json").unlink(missing_ok=True)


def names() -> list[str]:
    """Names of the registered labs."""
    return sorted(path.stem for path in REGISTRY.glob("*.json"))


def with_init(state: State, node: str, process: LabProcess | None) -> State:
    """The state with a node powered on (its first process) or off (None)."""
    inits = {name: known for name, known in state.inits.items() if name != node}
    return replace(state, inits=inits | ({node: process} if process else {}))


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock of a lab (or, by the name "", of the choice of subnets)."""
    REGISTRY.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = REGISTRY / f"{name or '_'}.lock"
    with _locked_file(path):
        try:
            yield
        finally:
            # The lock file is deleted with the lab; a waiting process notices that, and takes the new one.
            if not (REGISTRY / f"{name}.json").exists():
                path.unlink(missing_ok=True)


def _locked_file(path: Path) -> IO[str]:
    """Opens and locks the file at `path`, which still exists after the wait."""
    while True:
        file = open(path, "w")  # noqa: SIM115 - the caller closes it
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces a file atomically."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.chmod(mode)
    new.rename(path)
