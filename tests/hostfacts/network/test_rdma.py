import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.network.rdma import (
    ReadGids,
    ReadGidsOfKernel,
    ReadIbdev2netdev,
    ReadRdmaCounters,
    ReadRdmaDevices,
    ReadRdmaLinks,
)

# What real Sparks print, as their owners published it (2026): one cable in port 1, and two boxes back to back.
IBDEV2NETDEV = """roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
"""
RDMA_LINK = """link rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0
link rocep1s0f1/1 state DOWN physical_state DISABLED netdev enp1s0f1np1
link roceP2p1s0f0/1 state ACTIVE physical_state LINK_UP netdev enP2p1s0f0np0
link roceP2p1s0f1/1 state DOWN physical_state DISABLED netdev enP2p1s0f1np1
"""
IBV_DEVINFO = """hca_id:	rocep1s0f0
	transport:			InfiniBand (0)
	fw_ver:				28.45.4028
	node_guid:			4cbb:4703:002d:1a16
	sys_image_guid:			4cbb:4703:002d:1a16
	vendor_id:			0x02c9
	vendor_part_id:			4129
	hw_ver:				0x0
	board_id:			NVD0000000087
	phys_port_cnt:			1
		port:	1
			state:			PORT_DOWN (1)
			max_mtu:		4096 (5)
			active_mtu:		1024 (3)
			sm_lid:			0
			port_lid:		0
			port_lmc:		0x00
			link_layer:		Ethernet

hca_id:	rocep1s0f1
	transport:			InfiniBand (0)
	fw_ver:				28.45.4028
	node_guid:			4cbb:4703:002d:1a17
	sys_image_guid:			4cbb:4703:002d:1a16
	vendor_id:			0x02c9
	vendor_part_id:			4129
	hw_ver:				0x0
	board_id:			NVD0000000087
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			0
			port_lid:		0
			port_lmc:		0x00
			link_layer:		Ethernet
"""
SHOW_GIDS = """DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
---     ----    -----   ---                                     ------------    ---     ---
rocep1s0f0      1       0       fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx                 v1      enp1s0f0np0
rocep1s0f0      1       1       fe80:0000:0000:0000:4ebb:47ff:fe2d:1a16                 v2      enp1s0f0np0
rocep1s0f0      1       2       0000:0000:0000:0000:0000:ffff:c0a8:640a 192.168.100.10          v1      enp1s0f0np0
rocep1s0f0      1       3       0000:0000:0000:0000:0000:ffff:c0a8:640a 192.168.100.10          v2      enp1s0f0np0
n_gids_found=12
"""


def test_rdma_links():
    links = ReadRdmaLinks.parse(RDMA_LINK)
    assert [(link.device, link.netdev) for link in links if link.active] == [
        ("roceP2p1s0f0", "enP2p1s0f0np0"),
        ("rocep1s0f0", "enp1s0f0np0"),
    ]


def test_an_rdma_link_without_a_netdev():
    (link,) = ReadRdmaLinks.parse("link mlx5_0/1 state DOWN physical_state POLLING \n")
    assert (link.device, link.netdev, link.active) == ("mlx5_0", "", False)


def test_ibdev2netdev_gives_the_same_links():
    links = ReadIbdev2netdev.parse(IBDEV2NETDEV)
    assert [link.netdev for link in links if link.active] == ["enP2p1s0f1np1", "enp1s0f1np1"]
    assert ReadIbdev2netdev.parse("") == ()


def test_rdma_devices():
    down, up = ReadRdmaDevices.parse(IBV_DEVINFO)
    assert (down.active, down.active_mtu) == (False, 1024)
    assert (up.name, up.part) == ("rocep1s0f1", 4129)
    assert (up.active, up.active_mtu) == (True, 4096)
    assert ReadRdmaDevices.parse("No IB devices found\n") == ()


def test_gids():
    *_, last = found = ReadGids.parse(SHOW_GIDS)
    assert [gid.index for gid in found] == [1, 2, 3]
    assert (last.gid, last.ipv4, last.version) == ("::ffff:192.168.100.10", "192.168.100.10", 2)
    assert found[0].ipv4 is None


def test_gids_from_the_kernel_are_in_the_same_columns():
    output = "DEV PORT INDEX GID IPv4 VER DEV\nrocep1s0f0 1 3 0000:0000:0000:0000:0000:ffff:c0a8:640a v2 enp1s0f0np0\n"
    (gid,) = ReadGidsOfKernel.parse(output)
    assert (gid.ipv4, gid.netdev) == ("192.168.100.10", "enp1s0f0np0")


def test_counters_are_bytes():
    reader = ReadRdmaCounters("rocep1s0f1")
    assert reader.argv[:3] == ("grep", "-sH", ".")
    base = "/sys/class/infiniband/rocep1s0f1/ports/1"
    counters = reader.parse(
        f"{base}/counters/port_xmit_data:250\n{base}/counters/port_rcv_data:1\n{base}/hw_counters/out_of_sequence:3\n"
    )
    assert (counters.tx_bytes, counters.rx_bytes) == (1000, 4)
    assert counters.others == {"out_of_sequence": 3}


FACTS = (ReadRdmaLinks, ReadIbdev2netdev, ReadRdmaDevices, ReadGids, ReadRdmaCounters)


@pytest.mark.parametrize("fact", FACTS)
def test_text_of_a_shell_profile_is_an_error(fact):
    with pytest.raises(FactError, match="Welcome"):
        fact.parse("Welcome to DGX OS!\n")


pieces = st.sampled_from(
    [line + "\n" for text in (RDMA_LINK, IBDEV2NETDEV, IBV_DEVINFO, SHOW_GIDS) for line in text.splitlines()]
    + ["hca_id:", "fw_ver:", ":", "counters/port_xmit_data:٣\n", "/counters/port_rcv_data:" + "9" * 30 + "\n"]
)


@given(st.text() | st.lists(pieces | st.text(max_size=10), max_size=30).map("".join))
def test_any_text_is_a_value_or_a_fact_error(output):
    for fact in FACTS:
        with contextlib.suppress(FactError):
            fact.parse(output)
