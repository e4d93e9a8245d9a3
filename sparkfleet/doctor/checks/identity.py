"""Identity of the machines: all are Sparks, each with its own keys, all with one system."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from sparkfleet.doctor.check import Check, fleet_check, node_check
from sparkfleet.doctor.checks.agreement import differing, shared, values
from sparkfleet.doctor.findings import CheckFault, error, note, warning
from sparkfleet.doctor.machine_kind import MachineKind, recognise
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.hostfacts.machine import MachineIdentity

CVE = "CVE-2026-24218"


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
            means="It can be used, but rules and predictions for GB10 do not apply to it.",
        )


@node_check(
    "cx7-present", "the ConnectX-7 is present", rules=("cx7-absent-without-cable",), source="sparkbase wiki"
)
def cx7_present(node: NodeSnapshot, identity: MachineIdentity) -> Iterator[CheckFault]:
    """A ConnectX-7 without a cable may be absent from PCI."""
    if node.pci is None or recognise(identity, node.pci, node.gpus or ()).kind is not MachineKind.SPARK:
        return
    if not any(device.id == "15b3:1021" for device in node.pci):
        yield note(
            f"{node.name} has no ConnectX-7 on PCI",
            means="No cable is plugged in: without one its PCI functions may be absent. The card itself is not missing.",
            do="Plug the QSFP cable in; reboot if the card does not appear.",
        )


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
    release_same,
    kernel_same,
    machine_ids_differ,
    host_keys_differ,
)
