import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.network.pci_link import PciLink, ReadPciLink, ReadPciLinks


def test_pcie_from_sysfs_and_from_lspci():
    base = "/sys/class/net/enp1s0f1np1/device"
    output = f"{base}/current_link_speed:32.0 GT/s PCIe\n{base}/current_link_width:4\n"
    assert ReadPciLink.parse(output) == PciLink(gt_per_s=32.0, width=4)
    name = "Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]"
    listed = (
        f"0000:01:00.0 {name}\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x4, ASPM not supported\n"
        f"\t\tLnkSta:\tSpeed 32GT/s, Width x4\n\n"
        f"0002:01:00.1 {name}\n\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x2 (downgraded)\n"
        f"\n0002:01:00.0 {name}\n\tCapabilities: <access denied>\n"
    )
    assert ReadPciLinks.parse(listed) == {
        "0000:01:00.0": PciLink(gt_per_s=32.0, width=4),
        "0002:01:00.1": PciLink(gt_per_s=16.0, width=2),
    }


def test_a_device_without_pcie_is_an_error():
    with pytest.raises(FactError):
        ReadPciLink.parse("no data available\n")
