"""`Lab`: a lab for tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sparkfleet.lab import faults, lifecycle, power, state
from sparkfleet.lab.inventory import inventory
from sparkfleet.lab.layout import Cable, Layout, Topology
from sparkfleet.lab.machine import fingerprint
from sparkfleet.lab.replay.bundle import read_bundle
from sparkfleet.lab.replay.plan import ReplayPlan


@dataclass(frozen=True)
class LabNode:
    """One node of a lab, with the data for a connection."""

    name: str
    address: str
    """Address on the management LAN; the host reaches it there by SSH, port 22."""
    user: str
    host_key: str
    """Fingerprint of its current SSH host key, "SHA256:…"."""


class Lab:
    """A lab that is up. As a context manager it is deleted at the end.

        with Lab.up(nodes=2) as lab:
            lab.exec("spark1", ["hostname"]).stdout
            lab.cut("spark1-spark2", 0)

    The host reaches commands and files of nodes: the management LAN is one of its networks.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def up(
        cls,
        nodes: int = 2,
        topology: str | None = None,
        *,
        name: str | None = None,
        directory: Path | None = None,
        shares: Iterable[str | Path] = (),
        owner: int | None = None,
    ) -> Lab:
        """Makes a lab that ends at the latest with this process (or `owner`).

        Args:
            nodes: number of Sparks.
            topology: direct, ring or switch; by default direct for two, a switch for more.
            name: by default unique per process and lab.
            directory: for its files; it must not exist.
            shares: paths of the host that nodes see, read-only.
            owner: the process that it ends with.

        Raises:
            LabError: not root, or the host refused a request.
        """
        chosen = name or _free_name()
        lifecycle.up(
            chosen,
            nodes,
            Topology(topology) if topology else None,
            directory=str(directory) if directory else None,
            shares=[str(share) for share in shares],
            owner=owner or os.getpid(),
        )
        return cls(chosen)

    @classmethod
    def replay(
        cls,
        bundle: Path,
        *,
        name: str | None = None,
        shares: Iterable[str | Path] = (),
        owner: int | None = None,
    ) -> Lab:
        """Makes a lab of the fleet in a bundle; see `up`.

        Raises:
            LabError: the file is no bundle that can be replayed, not root, or the host refused a request.
        """
        chosen = name or _free_name()
        plan = ReplayPlan(read_bundle(bundle))
        shared = [str(share) for share in shares]
        lifecycle.up(chosen, len(plan.numbers), shares=shared, owner=owner or os.getpid(), replay=plan)
        return cls(chosen)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """Deletes the lab and its files. Calling it twice is harmless."""
        lifecycle.down(self.name)

    @property
    def layout(self) -> Layout:
        """Names, addresses, cables and rails."""
        return state.load(self.name).layout

    @property
    def nodes(self) -> tuple[LabNode, ...]:
        """The nodes, with their current host keys."""
        known = state.load(self.name)
        return tuple(
            LabNode(n.name, n.address, state.USER, fingerprint(known, n.name)) for n in known.layout.nodes
        )

    @property
    def links(self) -> tuple[Cable, ...]:
        """The cables."""
        return self.layout.cables

    @property
    def key_file(self) -> Path:
        """The private key that every node accepts."""
        return state.load(self.name).path("key")

    @property
    def ssh_config(self) -> Path:
        """A configuration for `ssh -F`."""
        return state.load(self.name).path("ssh_config")

    @property
    def powered(self) -> tuple[str, ...]:
        """Nodes that are on."""
        return state.load(self.name).powered

    def inventory(self) -> str:
        """The text of its inventory.yaml."""
        return inventory(state.load(self.name))

    def argv(self, node: str, argv: Sequence[str], *, root: bool = False) -> list[str]:
        """Command line on the host that runs `argv` in a node, as its user or as root."""
        return power.command(state.load(self.name), node, argv, root=root)

    def exec(
        self, node: str, argv: Sequence[str], *, root: bool = False, stdin: str = "", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs `argv` in a node, without SSH. A non-zero exit is a value. Raises LabError if the node is off."""
        return subprocess.run(
            self.argv(node, argv, root=root),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def cut(self, link: str, rail: int | None = None) -> None:
        """Pulls a rail, or both of a link."""
        faults.cut(self.name, link, rail)

    def mend(self, link: str, rail: int | None = None) -> None:
        """Undoes cut, slow, mtu and subnet on a rail, or on both."""
        faults.mend(self.name, link, rail)

    def slow(
        self, link: str, rail: int | None = None, *, gbit: float | None = None, delay_ms: float | None = None
    ) -> None:
        """Limits a rail, or both, to `gbit` Gb/s, or adds `delay_ms` in each direction."""
        faults.slow(self.name, link, rail, gbit=gbit, delay_ms=delay_ms)

    def mtu(self, link: str, rail: int | None, size: int, *, node: str | None = None) -> None:
        """Sets the MTU of a rail, at both ends or one."""
        faults.mtu(self.name, link, rail, size, node)

    def subnet(self, link: str, rail: int, network: str) -> None:
        """Moves a rail into another subnet."""
        faults.subnet(self.name, link, rail, network)

    def kill(self, node: str) -> None:
        """Cuts a node's power."""
        lifecycle.kill(self.name, node)

    def boot(self, node: str) -> None:
        """Switches a node on."""
        lifecycle.boot(self.name, node)

    def reboot(self, node: str) -> None:
        """Cuts a node's power and switches it on again."""
        lifecycle.reboot(self.name, node)

    def set(self, node: str, changes: Mapping[str, str] | None = None, **more: str) -> None:
        """Sets knobs: `lab.set("spark2", driver="580.95.05")`, `lab.set("spark1", {"gid.rocep1s0f1": "missing"})`."""
        faults.set_knobs(self.name, node, {**(changes or {}), **more})

    def heal(self, node: str) -> None:
        """Undoes every knob of a node."""
        faults.heal(self.name, node)


def _free_name() -> str:
    taken = set(state.names())
    base = f"t{os.getpid()}"
    return next(name for name in (base, *(f"{base}{letter}" for letter in "abcdefgh")) if name not in taken)
