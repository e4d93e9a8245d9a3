"""Kinds of machine that a simulated node can be: Sparks of several makers, and machines that resemble them.

DMI strings, release files and PCI ids of Sparks are from captures; those of the confusable machines are from their makers'
documentation, and are there to be refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineModel:
    """One kind of machine."""

    vendor: str
    product: str
    version: str
    bios: str
    dgx: bool = True
    tegra: str = ""

    def dmi(self, number: int) -> dict[str, str]:
        """Files of /sys/class/dmi/id. Serials contain the node's number and are readable by root only, as by the kernel."""
        return {
            "sys_vendor": self.vendor,
            "product_name": self.product,
            "product_version": self.version,
            "product_family": "DGX Spark" if self.dgx else "",
            "board_vendor": self.vendor,
            "board_name": "P4242" if self.dgx else "",
            "bios_vendor": "AMI" if self.vendor != "NVIDIA" else "NVIDIA",
            "bios_version": self.bios,
            "bios_date": "12/25/2025",
            "chassis_vendor": self.vendor,
            "product_serial": f"19835250{number:05d}",
            "board_serial": f"15835250{number:05d}",
        }

    def release_files(self, number: int, dgx_os: str) -> dict[str, str]:
        """Files below /etc that identify the machine."""
        if self.tegra:
            return {"nv_tegra_release": self.tegra}
        if not self.dgx:
            return {}
        return {
            "dgx-release": _DGX_RELEASE.format(serial=f"19835250{number:05d}", ota=dgx_os),
            "fastos-release": 'NAME="DGX SPARK FASTOS"\nVERSION="1.91.51"\nBUILD_TYPE="customer"\n',
        }


_DGX_RELEASE = """DGX_NAME="DGX Spark"
DGX_PRETTY_NAME="NVIDIA DGX Spark"
DGX_SWBUILD_DATE="2025-09-10-13-50-03"
DGX_SWBUILD_VERSION="7.2.3"
DGX_COMMIT_ID="833b4a7"
DGX_PLATFORM="DGX Server for KVM"
DGX_SERIAL_NUMBER="{serial}"
DGX_OTA_VERSION="7.4.0"
DGX_OTA_DATE="Tue Mar 17 10:12:41 AM PDT 2026"
DGX_OTA_VERSION="{ota}"
DGX_OTA_DATE="Wed Jul 15 09:06:56 AM PDT 2026"
"""
_TEGRA = "# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic, EABI: aarch64\n"

MACHINES = {
    "spark": MachineModel("NVIDIA", "NVIDIA_DGX_Spark", "A.7", "5.36_0ACUM023"),
    "gx10": MachineModel("ASUSTeK COMPUTER INC.", "Ascent GX10", "1.0", "GX10DGX.0102"),
    "pgx": MachineModel("LENOVO", "30KL0004FC", "ThinkStation PGX", "5.36_0ACUM023"),
    "jetson-thor": MachineModel(
        "NVIDIA", "NVIDIA Jetson AGX Thor Developer Kit", "", "38.2.0", dgx=False, tegra=_TEGRA
    ),
    "gh200": MachineModel("Supermicro", "ARS-111GL-NHR", "0123456789", "1.3", dgx=False),
    "rtx-spark": MachineModel("NVIDIA", "RTX Spark N1X", "1.0", "1.0", dgx=False),
}
