"""Facts that were read of a fleet: the only input of the checks. None is "not known"; `unknown` has the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_interface

from pydantic import Field

from sparkfleet.fabric.link_measurements import TransportProof
from sparkfleet.hostfacts.clock import ClockOffset, TimeSync
from sparkfleet.hostfacts.container import ContainerTool
from sparkfleet.hostfacts.disk import Disks
from sparkfleet.hostfacts.gpu import GpuProcess, GpuState
from sparkfleet.hostfacts.kernel_log import KernelLog
from sparkfleet.hostfacts.last_boot import LastBoot
from sparkfleet.hostfacts.machine import MachineIdentity, PciDevice
from sparkfleet.hostfacts.memory import FreeBlocks, Kernel, MemoryMap
from sparkfleet.hostfacts.network.ethtool import Fec, LinkSettings
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.hostfacts.network.netdev import Netdev
from sparkfleet.hostfacts.network.pci_link import PciLink
from sparkfleet.hostfacts.network.rdma import Gid, RdmaDevice, RdmaLink
from sparkfleet.hostfacts.privileges import Limit, Services, User
from sparkfleet.hostfacts.processes import HoldingProcess
from sparkfleet.hostfacts.venv import PythonEnvironment
from sparkfleet.values import Value

_PCI_NAME = re.compile(r"en(?:P(\d{1,5}))?p(\d{1,3})s(\d{1,2})(?:f(\d))?(?:n\w{1,8})?", re.ASCII)


def pci_address(netdev: str) -> str:
    """The PCI address in a netdev's name by systemd: enP2p1s0f1np1 is 0002:01:00.1. "" for other names."""
    found = _PCI_NAME.fullmatch(netdev)
    if found is None:
        return ""
    domain, bus, slot, function = (int(number or 0) for number in found.groups())
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


class Silence(Value):
    """Reason for a node without an answer."""

    what: str
    means: str = ""
    do: str = ""
    key_changed: bool = False
    """The machine that answered does not have the pinned host key."""


class NodeSnapshot(Value):
    """One node. None: the field was requested, but the node did not answer it."""

    name: str
    address: str = ""
    """Address in the inventory; `local` for this machine."""
    pinned_key: str | None = None
    engines_of_its_own: bool = False
    """The inventory has environments of engines for it, so that it needs no containers."""
    silence: Silence | None = None
    unknown: dict[str, str] = Field(default_factory=dict)
    """Fields that are not known, with the reason."""

    identity: MachineIdentity | None = None
    pci: tuple[PciDevice, ...] | None = None
    host_keys: tuple[str, ...] | None = None
    gpus: tuple[GpuState, ...] | None = None
    gpu_processes: tuple[GpuProcess, ...] | None = None
    memory: MemoryMap | None = None
    free_blocks: FreeBlocks | None = None
    kernel: Kernel | None = None
    kernel_log: KernelLog | None = None
    last_boot: LastBoot | None = None
    packages: Mapping[str, str] | None = None
    processes: tuple[HoldingProcess, ...] | None = None
    disks: Disks | None = None
    container_tools: tuple[ContainerTool, ...] | None = None
    """The installed ones."""
    cdi: tuple[str, ...] | None = None
    clock: ClockOffset | None = None
    time_sync: TimeSync | None = None
    python: PythonEnvironment | None = None
    """The environment that sparkfleet and Ray run from."""
    locked_memory: Limit | None = None
    open_files: Limit | None = None
    user: User | None = None
    services: Services | None = None
    sockets: tuple[ListeningSocket, ...] | None = None

    netdevs: tuple[Netdev, ...] | None = None
    loose_arp: frozenset[str] | None = None
    """Netdevs that answer ARP for addresses of other netdevs."""
    rdma_links: tuple[RdmaLink, ...] | None = None
    rdma_devices: tuple[RdmaDevice, ...] | None = None
    gids: tuple[Gid, ...] | None = None
    settings: dict[str, LinkSettings] = Field(default_factory=dict)
    """By netdev of a rail, as are the fields below."""
    fec: dict[str, Fec] = Field(default_factory=dict)
    pci_links: dict[str, PciLink] = Field(default_factory=dict)
    pci_by_address: dict[str, PciLink] | None = None
    """From `lspci`, if this user may see it; for drivers without the values in sysfs."""

    def netdev(self, name: str) -> Netdev | None:
        """The netdev of that name; None if there is none, or none are known."""
        return next((one for one in self.netdevs or () if one.name == name), None)

    def rdma_device(self, name: str) -> RdmaDevice | None:
        """The RDMA device of that name."""
        return next((one for one in self.rdma_devices or () if one.name == name), None)

    def pci_link(self, netdev: str) -> PciLink | None:
        """PCIe link of a netdev's function."""
        return self.pci_links.get(netdev) or (self.pci_by_address or {}).get(pci_address(netdev))

    def gids_of(self, device: str) -> tuple[Gid, ...]:
        """The RoCE v2 entries of IPv4 addresses, which NCCL uses."""
        return tuple(
            one
            for one in self.gids or ()
            if one.device == device and one.version == 2 and one.ipv4 is not None
        )


class EndSnapshot(Value):
    """One end of a rail, as the inventory declares it."""

    node: str
    netdev: str
    rdma: str | None = None
    address: str
    """With its prefix length."""

    @property
    def ip(self) -> str:
        """The address alone."""
        return str(ip_interface(self.address).ip)

    @property
    def network(self) -> str:
        """The subnet."""
        return str(ip_interface(self.address).network)


class RailSnapshot(Value):
    """One rail, as the inventory declares it."""

    ends: tuple[EndSnapshot, ...]

    @property
    def is_rdma(self) -> bool:
        """True if the inventory requires RDMA on it."""
        return all(end.rdma for end in self.ends)


class LinkSnapshot(Value):
    """One cable."""

    name: str
    """`spark1–spark2`, or `spark1–switch`."""
    nodes: tuple[str, ...]
    switch: str | None = None
    rails: tuple[RailSnapshot, ...]


class RailSpeed(Value):
    """Measurements of one rail between two nodes. None: not measured."""

    here: EndSnapshot
    """The end that sent."""
    there: EndSnapshot
    gbit_per_s: float | None = None
    """Gb/s (1e9 bits), one way, with the other rails of the path under load."""
    one_way_us: float | None = None
    """Latency of a small message on the idle rail, microseconds."""
    measured_with: str = ""
    """`ib_write_bw`, or its replacement."""
    jumbo: bool | None = None
    """True if a packet of the full MTU passed without fragmentation."""
    reached: bool | None = None
    """True if a small packet came back."""
    ping_us: float | None = None
    """Round trip, microseconds."""

    @property
    def is_rdma(self) -> bool:
        """True if the inventory requires RDMA on it."""
        return bool(self.here.rdma and self.there.rdma)


class PathSnapshot(Value):
    """Two nodes that a cable or a switch joins, and the measurements between them."""

    name: str
    """The link's name if the path is one cable."""
    nodes: tuple[str, str]
    switch: str | None = None
    rails: tuple[RailSpeed, ...]
    proof: TransportProof | None = None
    """Proof of the devices that carried the bytes."""
    why_not: str = ""
    """Reason for which nothing is known of it."""
    not_loaded: str = ""
    """Reason for which its rails were not loaded, if they were pinged."""


class Needed(Value):
    """Disk space that one deployment needs."""

    deployment: str
    model: str
    """Without its revision."""
    revision: str = ""
    """"" if the deployment names none."""
    tag: str = ""
    """Of a GGUF model, in upper case: its repository has others beside it."""
    weights_bytes: int
    nodes: tuple[str, ...] = ()
    """Nodes that need them; empty: any node may get them."""


class FleetReadings(Value):
    """The facts of a fleet at one time."""

    name: str
    head: str
    nodes: tuple[NodeSnapshot, ...]
    links: tuple[LinkSnapshot, ...] = ()
    """Links between nodes that are read."""
    other_links: tuple[LinkSnapshot, ...] = ()
    """Links with an end at a node that is not read: no check is about them, but their rails are rails of the other end."""
    needed: tuple[Needed, ...] = ()
    gateway_port: int = 8000
    gateway_host: str = "127.0.0.1"
    paths: tuple[PathSnapshot, ...] | None = None
    """None if nothing was measured."""
    sparkfleet: str = ""
    """Version of sparkfleet on this machine."""
    read_at: float | None = None
    """Time of the reading, Unix seconds by this machine's clock; None: not known."""

    @property
    def answered(self) -> tuple[NodeSnapshot, ...]:
        """Nodes that answered."""
        return tuple(node for node in self.nodes if node.silence is None)

    def node(self, name: str) -> NodeSnapshot:
        """The node of that name. Raises KeyError."""
        return {node.name: node for node in self.nodes}[name]

    def rail_netdevs(self, node: str) -> tuple[str, ...]:
        """The netdevs of a node's rails."""
        return tuple(end.netdev for end in self._ends(node))

    def rail_networks(self, node: str) -> tuple[str, ...]:
        """The subnets of a node's rails."""
        return tuple(end.network for end in self._ends(node))

    def _ends(self, node: str) -> Iterator[EndSnapshot]:
        for link in (*self.links, *self.other_links):
            for rail in link.rails:
                yield from (end for end in rail.ends if end.node == node)
