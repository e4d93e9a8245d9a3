"""Recognises a Spark by its identity, and the machines that resemble one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatch

from sparkfleet.hostfacts.gpu import GpuState
from sparkfleet.hostfacts.machine import MachineIdentity, PciDevice
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.values import Value

NVIDIA = "10de:"


class MachineKind(StrEnum):
    """Kinds of machine that sparkfleet distinguishes."""

    SPARK = "spark"
    CONFUSABLE = "confusable"
    """It resembles a Spark, but facts about Sparks are wrong for it."""
    OTHER = "other"


class Recognised(Value):
    """Kind of a machine, and the evidence for it."""

    kind: MachineKind
    name: str
    """Such as "ASUS Ascent GX10"; "" if its firmware has no known name."""
    because: str
    """One clause: "its GPU is 10de:2e12"."""


def recognise(
    identity: MachineIdentity, pci: Iterable[PciDevice] = (), gpus: Iterable[GpuState] = ()
) -> Recognised:
    """Recognises a machine. The first match counts: confusables before Sparks, PCI ids before names."""
    devices, names = tuple(pci), tuple(gpu.name for gpu in gpus)
    other = _confusable(identity, devices, names)
    return other if other is not None else _spark(identity, devices, names)


def _confusable(
    identity: MachineIdentity, pci: tuple[PciDevice, ...], names: tuple[str, ...]
) -> Recognised | None:
    if identity.tegra:
        evidence = f"it has /etc/nv_tegra_release, and its product name is {identity.product or 'empty'}"
        return Recognised(kind=MachineKind.CONFUSABLE, name="an NVIDIA Jetson", because=evidence)
    known = dict(hardware().confusables)
    for device in pci:
        if device.id in known:
            return Recognised(
                kind=MachineKind.CONFUSABLE, name=known[device.id], because=f"its GPU is {device.id}"
            )
    for name in names:
        if "GH200" in name or "GB200" in name or "Thor" in name:
            return Recognised(kind=MachineKind.CONFUSABLE, name=name, because=f"its GPU is named {name}")
    return None


def _spark(identity: MachineIdentity, pci: tuple[PciDevice, ...], names: tuple[str, ...]) -> Recognised:
    ids = {device.id for device in pci}
    sparks = {found for box in hardware().boxes for found in box.pci_ids}
    vendor = _vendor(identity)
    if found := sorted(ids & sparks):
        return Recognised(
            kind=MachineKind.SPARK, name=vendor or "DGX Spark", because=f"its GPU is {found[0]}"
        )
    if "NVIDIA GB10" in names:
        return Recognised(
            kind=MachineKind.SPARK, name=vendor or "DGX Spark", because="its GPU is an NVIDIA GB10"
        )
    gpu = next((found for found in sorted(ids) if found.startswith(NVIDIA)), None) or next(iter(names), None)
    if vendor and gpu is None:
        return Recognised(
            kind=MachineKind.SPARK, name=vendor, because=f"its firmware reports {identity.machine}"
        )
    if identity.release is not None and "spark" in identity.release.name.lower() and gpu is None:
        return Recognised(kind=MachineKind.SPARK, name="DGX Spark", because="it has /etc/dgx-release")
    evidence = f"its GPU is {gpu}" if gpu else "it has no GPU of a Spark"
    return Recognised(kind=MachineKind.OTHER, name=identity.machine, because=evidence)


def _vendor(identity: MachineIdentity) -> str:
    """The maker's name for the machine. Acer has no published product name, so its vendor field decides."""
    for vendor in hardware().vendors:
        name = identity.machine if vendor.id == "acer" else identity.product
        if any(fnmatch(name.lower(), pattern.lower()) for pattern in vendor.dmi) and name:
            return vendor.name
    return ""
