"""Identity of a node: release, maker, kernel, driver module, host keys, PCI devices.

Small files are read together: `grep -asH ""` prints each line with its path, skips missing files, and needs no
shell: one command instead of fifteen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import Fact, by_file, settings, text
from sparkfleet.values import Value

DMI = "/sys/class/dmi/id"
GREP = ("grep", "-asH", "")

_DRIVER = re.compile(r"\b(\d{3}\.\d{1,4}(?:\.\d{1,4})?)\b", re.ASCII)
_PCI = re.compile(
    r"^([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.{1,200}?)\[([0-9a-f]{4}:[0-9a-f]{4})\]", re.ASCII
)


class DgxRelease(Value):
    """`/etc/dgx-release`."""

    name: str
    """"DGX Spark"; OEM images have the same."""
    software: str
    """The release that the node was installed with, such as "7.2.3"."""
    updated: str = ""
    """The last over-the-air update, such as "7.5.0"; "" if there was none."""

    @property
    def version(self) -> str:
        """The release in force: the last update, or the installed one."""
        return self.updated or self.software


class MachineIdentity(Value):
    """Identity of a machine as it reports it. Empty text: not reported."""

    release: DgxRelease | None = None
    """None if there is no `/etc/dgx-release`, as on some OEM images."""
    tegra: str = ""
    """First line of `/etc/nv_tegra_release`: only Jetsons have one."""
    kernel: str = ""
    machine_id: str = ""
    """Not unique: OEM images share it (CVE-2026-24218)."""
    vendor: str = ""
    product: str = ""
    bios: str = ""
    driver_module: str = ""
    """Version of the loaded NVIDIA kernel module; the libraries may have another."""

    @property
    def machine(self) -> str:
        """Vendor and product as the firmware names them."""
        return " ".join(part for part in (self.vendor, self.product) if part)


class ReadIdentity(Fact[MachineIdentity]):
    """Release files, DMI, kernel and driver module. A report for help has all of them; the value has those that are used."""

    argv = (
        *GREP,
        "/etc/dgx-release",
        "/etc/fastos-release",
        "/etc/nv_tegra_release",
        "/etc/os-release",
        "/etc/machine-id",
        "/proc/sys/kernel/osrelease",
        "/proc/driver/nvidia/version",
        f"{DMI}/sys_vendor",
        f"{DMI}/product_name",
        f"{DMI}/product_version",
        f"{DMI}/bios_version",
    )
    fine = (0, 2)

    @staticmethod
    def parse(output: str) -> MachineIdentity:
        """Identity from lines with their paths."""
        files = by_file(output)
        if not files:
            raise FactError(
                "The node has neither /etc/os-release nor /proc/sys/kernel/osrelease.",
                means="The machine and its operating system cannot be identified.",
                do="Check that the node runs Linux and that /proc is mounted.",
            )
        return MachineIdentity(
            release=_release(files.get("/etc/dgx-release", ())),
            tegra=_first(files, "/etc/nv_tegra_release"),
            kernel=_first(files, "/proc/sys/kernel/osrelease"),
            machine_id=_first(files, "/etc/machine-id"),
            vendor=_first(files, f"{DMI}/sys_vendor"),
            product=_first(files, f"{DMI}/product_name"),
            bios=_first(files, f"{DMI}/bios_version"),
            driver_module=_driver(_first(files, "/proc/driver/nvidia/version")),
        )


def _first(files: Mapping[str, Sequence[str]], path: str) -> str:
    lines = files.get(path, ())
    return text(lines[0].strip()) if lines else ""


def _driver(line: str) -> str:
    found = _DRIVER.search(line)
    return found[1] if found else ""


def _release(lines: Sequence[str]) -> DgxRelease | None:
    """The release; every update appends its own `DGX_OTA_VERSION`, and the last one counts."""
    found = dict(settings(lines))
    if not found:
        return None
    return DgxRelease(
        name=found.get("DGX_NAME", ""),
        software=found.get("DGX_SWBUILD_VERSION", ""),
        updated=found.get("DGX_OTA_VERSION", ""),
    )


class PciDevice(Value):
    """One line of `lspci -Dnn`."""

    address: str
    """With its domain: `000f:01:00.0`."""
    what: str
    id: str
    """`vendor:device`, hexadecimal: `10de:2e12` is the GPU of a GB10."""


class ReadPciDevices(Fact[tuple[PciDevice, ...]]):
    """Reads the PCI devices with their ids. On some images `lspci` is not installed."""

    argv = ("lspci", "-Dnn")

    @staticmethod
    def parse(output: str) -> tuple[PciDevice, ...]:
        """Devices by line. Other lines are skipped: `lspci` prints a warning on stdout if a device is gone."""
        found = (_pci(line) for line in output.splitlines()[:4096])
        return tuple(device for device in found if device is not None)


def _pci(line: str) -> PciDevice | None:
    # The class is in brackets too, "[0300]"; only ids have a colon.
    found = _PCI.match(line)
    return PciDevice(address=found[1], what=text(found[2].strip()), id=found[3]) if found else None


class ReadHostKeys(Fact[tuple[str, ...]]):
    """Fingerprints of the SSH host keys that are installed on the node, as `ssh-keygen -l` prints them."""

    argv = (
        *GREP,
        "/etc/ssh/ssh_host_ed25519_key.pub",
        "/etc/ssh/ssh_host_ecdsa_key.pub",
        "/etc/ssh/ssh_host_rsa_key.pub",
    )
    fine = (0, 1, 2)

    @staticmethod
    def parse(output: str) -> tuple[str, ...]:
        """`SHA256:…` of each key; empty if the node runs no SSH server of its own."""
        keys = (line.split(maxsplit=2) for lines in by_file(output).values() for line in lines[:1])
        found = (_fingerprint(words[1]) for words in keys if len(words) >= 2)
        return tuple(sorted(one for one in found if one is not None))


def _fingerprint(key: str) -> str | None:
    try:
        blob = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
