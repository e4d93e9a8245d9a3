"""Identity of the machines: all are Sparks, each with its own keys, all with one system."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from sparkfleet.doctor.check import Check, fleet_check, node_check
from sparkfleet.doctor.checks.agreement import differing, shared, values
from sparkfleet.doctor.findings import CheckFault, error, note, warning
from sparkfleet.doctor.machine_kind import MachineKind, recognise
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot, pci_address
from sparkfleet.hostfacts.machine import MachineIdentity
from sparkfleet.hostfacts.network.netdev import Netdev

CVE = "CVE-2026-24218"
CX7 = "15b3:1021"
"""PCI id of a ConnectX-7 function."""


@node_check(
    "machine-is-a-spark", "the machine is a Spark", source="knowledge/hardware.yaml, vendors and confusables"
)
def machine_is_a_spark(node: NodeSnapshot, identity: MachineIdentity) -> Iterator[CheckFault]:
    """Reports machines that are mistaken for a Spark as errors, and others as a note."""
    found = recognise(identity, node.pci or (), node.gpus or ())
    if found.kind is MachineKind.CONFUSABLE:
        yield error(
            f"{node.name} is not a DGX Spark but {found.name}: {found.because}",
            means="A Spark's memory, images and measurements do not apply to it, so its plans would be wrong.",
            do="Remove it from inventory.yaml.",
            machine=identity.machine,
        )
    elif found.kind is MachineKind.OTHER:
        yield note(
            f"{node.name} is not a DGX Spark ({identity.machine or 'unnamed machine'}): {found.because}",
            means="Images, memory and speed are known for the GB10 of a Spark: plans leave another GPU out. A node without"
            " a GPU serves the embedded models, any node custom workloads.",
        )


@node_check(
    "cx7-present",
    "the ConnectX-7 is present",
    rules=("cx7-absent-without-cable",),
    source="sparkbase wiki; digchick/dgx-spark-200g-link-fix; NVIDIA/dgx-spark-playbooks, pull request 108",
)
def cx7_present(node: NodeSnapshot, identity: MachineIdentity, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports a ConnectX-7 that is absent from PCI on a node with a cable in the inventory: without one it may be off."""
    if not _is_spark(node, identity) or not fleet.rail_netdevs(node.name):
        return
    if not _cx7_functions(node):
        yield note(
            f"{node.name} has no ConnectX-7 on PCI",
            means="DGX OS switches it off while no cable is plugged in, and while the machine at the other end is off. The"
            " card itself is not missing.",
            do=(
                "Plug the QSFP cable in, and reboot both ends together: a card that came back without a boot was measured at"
                " 13 of 200 Gb/s.",
                "sudo mv /etc/nvidia/cx7-hotplug-enabled /etc/nvidia/cx7-hotplug-enabled.off   # on all nodes, if a reboot"
                " of one takes the card of its neighbour away",
            ),
        )


@node_check(
    "cx7-idle",
    "a ConnectX-7 without a cable is switched off",
    source="graham33/nixos-dgx-spark, issue 165: 40 W idle with it, 25 W without",
)
def cx7_idle(
    node: NodeSnapshot, identity: MachineIdentity, netdevs: tuple[Netdev, ...], fleet: FleetReadings
) -> Iterator[CheckFault]:
    """Reports a ConnectX-7 that is on, with no carrier at any port, on a node without a cable in the inventory."""
    if not _is_spark(node, identity) or fleet.rail_netdevs(node.name):
        return
    functions = _cx7_functions(node)
    ports = [one for one in netdevs if pci_address(one.name) in functions]
    # A port that is switched off shows no carrier whether a cable is plugged in or not.
    if ports and all(one.up and not one.carrier for one in ports):
        yield note(
            f"{node.name}: the ConnectX-7 is on, and none of its {len(ports)} ports has a cable",
            means="It takes about 15 W: 40 W were measured at an idle Spark with it and 25 W without. DGX OS of 2026-02 and"
            " later switches it off while no cable is plugged in.",
            do=(
                "sudo apt update && sudo apt full-upgrade && sudo apt install dgx-spark-mlnx-hotplug && sudo reboot",
                "When you plug a cable in later, it comes back by itself.",
            ),
        )


def _is_spark(node: NodeSnapshot, identity: MachineIdentity) -> bool:
    """True if PCI was read and the machine is a Spark."""
    return node.pci is not None and recognise(identity, node.pci, node.gpus or ()).kind is MachineKind.SPARK


def _cx7_functions(node: NodeSnapshot) -> frozenset[str]:
    """PCI addresses of the ConnectX-7's functions."""
    return frozenset(device.address for device in node.pci or () if device.id == CX7)


def _release(node: NodeSnapshot) -> str | None:
    return node.identity.release.version if node.identity and node.identity.release else None


def _kernel(node: NodeSnapshot) -> str | None:
    return node.identity.kernel if node.identity else None


@fleet_check("release-same", "all nodes have one DGX OS release")
def release_same(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares the last updates, not the installed images."""
    if differences := differing(values(fleet, _release)):
        yield warning(
            f"DGX OS differs: {differences}",
            means="Drivers, firmware and libraries differ, too; published two-node numbers are from equal nodes.",
            do="sudo apt update && sudo apt full-upgrade && sudo reboot   # on the older ones",
        )


@fleet_check("kernel-same", "all nodes have one kernel")
def kernel_same(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares kernels: early 6.17 kernels capped RoCE, and one such end is enough."""
    if differences := differing(values(fleet, _kernel)):
        yield warning(
            f"kernels differ: {differences}",
            means="The slower network stack of the two sets the speed of a link.",
            do="sudo apt full-upgrade && sudo reboot   # on all nodes",
        )


@fleet_check(
    "machine-ids-differ", "every node has a machine-id of its own", rules=("cloned-machine-id",), source=CVE
)
def machine_ids_differ(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports machine-ids that nodes share, as in OEM images."""
    for machine_id, nodes in shared(
        values(fleet, lambda node: node.identity.machine_id if node.identity else None)
    ):
        yield warning(
            f"{nodes} have one machine-id, {machine_id[:12]}…",
            means="They were installed from one image. DHCP may give them one address; their logs look the same.",
            do=(
                "sudo rm /etc/machine-id /var/lib/dbus/machine-id",
                "sudo systemd-machine-id-setup && sudo reboot   # on all of these nodes but one",
            ),
        )


def _keys(node: NodeSnapshot) -> set[str]:
    return set(node.host_keys or ()) | ({node.pinned_key} if node.pinned_key else set())


@fleet_check(
    "host-keys-differ", "every node has SSH host keys of its own", rules=("cloned-machine-id",), source=CVE
)
def host_keys_differ(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports host keys that nodes share: the owner of one can impersonate all. Pinned keys of silent nodes count."""
    for key in sorted(set(chain.from_iterable(_keys(node) for node in fleet.nodes))):
        nodes = [node.name for node in fleet.nodes if key in _keys(node)]
        if len(nodes) > 1:
            yield error(
                f"{' and '.join(nodes)} have one SSH host key, {key}",
                means="They were installed from one image: any other machine with that key can impersonate them.",
                do=(
                    "sudo rm /etc/ssh/ssh_host_*",
                    "sudo ssh-keygen -A && sudo systemctl restart ssh   # on all of these nodes",
                    "sparkfleet init HOST…   # pins the new keys",
                ),
                fingerprint=key,
            )
            return


CHECKS: tuple[Check, ...] = (
    machine_is_a_spark,
    cx7_present,
    cx7_idle,
    release_same,
    kernel_same,
    machine_ids_differ,
    host_keys_differ,
)
