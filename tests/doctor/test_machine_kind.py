from pathlib import Path

import pytest

from sparkfleet.doctor.machine_kind import MachineKind, recognise
from sparkfleet.hostfacts.gpu import GpuState
from sparkfleet.hostfacts.machine import MachineIdentity, PciDevice, ReadIdentity, ReadPciDevices

CAPTURES = Path(__file__).parents[1] / "hostfacts" / "captures"


def device(pci_id):
    return PciDevice(address="000f:01:00.0", what="VGA", id=pci_id)


def test_a_founders_edition():
    found = recognise(
        ReadIdentity.parse((CAPTURES / "identity.txt").read_text()),
        ReadPciDevices.parse((CAPTURES / "lspci.txt").read_text()),
    )
    assert (found.kind, found.name, found.because) == (
        MachineKind.SPARK,
        "NVIDIA DGX Spark",
        "its GPU is 10de:2e12",
    )


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("ASUSTeK COMPUTER INC.", "Ascent GX10", "ASUS Ascent GX10"),
        ("LENOVO", "ThinkStation PGX", "Lenovo ThinkStation PGX"),
        ("LENOVO", "30KL0004FC", "Lenovo ThinkStation PGX"),
        ("HP", "HP ZGX Nano G1n AI Station", "HP ZGX Nano"),
        ("Dell Inc.", "Dell Pro Max FCM1253", "Dell Pro Max with GB10"),
        ("GIGABYTE", "AI TOP ATOM", "GIGABYTE AI TOP ATOM"),
        ("Micro-Star International", "EdgeXpert", "MSI EdgeXpert"),
        ("Acer", "Veriton GN100", "Acer (GB10)"),
    ],
)
def test_other_makers_boxes(vendor, product, name):
    found = recognise(MachineIdentity(vendor=vendor, product=product), [device("10de:2e12")])
    assert (found.kind, found.name) == (MachineKind.SPARK, name)


def test_a_makers_name_with_another_gpu_is_no_spark():
    found = recognise(MachineIdentity(vendor="Acer", product="Predator"), [device("10de:2684")])
    assert found.kind is MachineKind.OTHER
    assert found.because == "its GPU is 10de:2684"


@pytest.mark.parametrize(
    ("identity", "pci", "gpu", "because"),
    [
        (MachineIdentity(tegra="# R38", product="Jetson AGX Thor"), "10de:2e12", "", "nv_tegra_release"),
        (MachineIdentity(), "10de:2e03", "", "10de:2e03"),
        (MachineIdentity(), "10de:2e06", "", "10de:2e06"),
        (MachineIdentity(), "10de:2342", "NVIDIA GH200 480GB", "GH200"),
    ],
)
def test_a_machine_that_resembles_a_spark_is_refused_with_the_reason(identity, pci, gpu, because):
    gpus = [GpuState(name=gpu, driver="580.142")] if gpu else []
    found = recognise(identity, [device(pci)], gpus)
    assert found.kind is MachineKind.CONFUSABLE
    assert because in found.because


def test_without_lspci_the_gpu_or_the_firmware_decides():
    gpu = GpuState(name="NVIDIA GB10", driver="580.142")
    assert recognise(MachineIdentity(), (), [gpu]).kind is MachineKind.SPARK
    assert recognise(MachineIdentity(vendor="NVIDIA", product="NVIDIA_DGX_Spark")).kind is MachineKind.SPARK


def test_an_unidentified_machine_is_no_spark():
    assert recognise(MachineIdentity()).kind is MachineKind.OTHER
