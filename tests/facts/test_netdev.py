import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError
from sparkfleet.facts.netdev import (
    Fec,
    LinkSettings,
    Netdev,
    PciLink,
    ReadDriverCounters,
    ReadFec,
    ReadLinkSettings,
    ReadLldp,
    ReadNeighbours,
    ReadNetdevs,
    ReadPciLink,
    ReadPciLinks,
    ReadRoutes,
    ReadTraffic,
    management_netdev,
)

# iproute2's shape with the names, addresses and MTUs of a two-Spark pair; no whole `ip -j` of a Spark is published.
NETDEVS = json.dumps(
    [
        {"ifindex": 1, "ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "mtu": 65536, "addr_info": []},
        {},
        {
            "ifindex": 4,
            "ifname": "enp1s0f1np1",
            "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
            "mtu": 1500,
            "operstate": "UP",
            "link_type": "ether",
            "address": "3C:6D:66:cc:b3:b7",
            "addr_info": [
                {"family": "inet", "local": "192.168.100.10", "prefixlen": 24, "scope": "global", "label": "enp1s0f1np1"},
                {"family": "inet6", "local": "fe80::3e6d:66ff:fecc:b3b7", "prefixlen": 64, "scope": "link"},
            ],
        },
        {
            "ifname": "wlP9s9",
            "flags": ["BROADCAST", "UP"],
            "mtu": 1500,
            "operstate": "DOWN",
            "address": "3c:6d:66:cc:b3:00",
            "addr_info": [{"family": "inet", "local": "192.168.1.11", "prefixlen": 24, "dynamic": True}],
        },
        {"ifname": "docker0", "flags": ["NO-CARRIER", "UP"], "mtu": 1500, "linkinfo": {"info_kind": "bridge"}},
    ]
)  # fmt: skip


def test_netdevs():
    rail, wifi, docker = ReadNetdevs.parse(NETDEVS)
    assert rail.mac == "3c:6d:66:cc:b3:b7"
    assert (rail.up, rail.carrier, rail.mtu, rail.kind) == (True, True, 1500, "")
    assert [str(one) for one in rail.ipv4] == ["192.168.100.10/24"]
    assert rail.link_local == ("fe80::3e6d:66ff:fecc:b3b7",)
    assert not wifi.carrier
    assert wifi.addresses[0].dynamic
    assert docker == Netdev(
        name="docker0", mac="", mtu=1500, up=True, carrier=False, state="UNKNOWN", kind="bridge"
    )


def test_traffic():
    stats = '{"rx": {"bytes": 7, "errors": 1, "dropped": 2}, "tx": {"bytes": 9}}'
    output = f'[{{"ifname": "e0", "stats64": {stats}}}, {{"ifname": "x"}}]'
    (traffic,) = ReadTraffic.parse(output)
    assert (traffic.rx_bytes, traffic.tx_bytes, traffic.rx_errors, traffic.rx_dropped) == (7, 9, 1, 2)


def test_the_default_route_with_the_lowest_metric_is_the_management_network():
    routes = ReadRoutes.parse(
        '[{"dst": "default", "gateway": "192.168.1.1", "dev": "wlP9s9", "metric": 600},'
        '{"dst": "default", "gateway": "10.0.0.1", "dev": "enP7s7", "metric": 100},'
        '{"dst": "192.168.100.0/24", "dev": "enp1s0f1np1"}, {"type": "blackhole", "dst": "10.9.0.0/16"}]'
    )
    assert [route.to for route in routes] == ["0.0.0.0/0", "0.0.0.0/0", "192.168.100.0/24"]
    assert management_netdev(routes) == "enP7s7"
    assert management_netdev(()) is None


def test_only_a_neighbour_that_answered_lately_is_confirmed():
    fresh, stale, silent = ReadNeighbours.parse(
        '[{"dst": "fe80::1", "dev": "e0", "lladdr": "86:11:B8:24:F4:34", "state": ["DELAY"]},'
        '{"dst": "192.168.100.11", "dev": "e0", "lladdr": "86:11:b8:24:f4:34", "state": ["STALE"]},'
        '{"dst": "192.168.100.12", "dev": "e0", "state": ["FAILED"]}]'
    )
    assert fresh.confirmed
    assert fresh.mac == "86:11:b8:24:f4:34"
    assert not stale.confirmed
    assert (silent.mac, silent.confirmed) == ("", False)


SWITCH = {
    "chassis": {
        "CRS812": {
            "id": {"type": "mac", "value": "AA-BB-CC-DD-EE-01"},
            "capability": [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": False}],
        }
    },
    "port": {"id": {"type": "ifname", "value": "qsfp56-1-1"}},
}
SPARK = {
    "chassis": {"spark2": {"id": {"type": "mac", "value": "4c:bb:47:2d:1a:16"}}},
    "port": {"id": {"type": "mac", "value": "4c:bb:47:2d:1a:17"}, "descr": "enp1s0f1np1"},
}


@pytest.mark.parametrize(
    "interface",
    [[{"e0": SWITCH}, {"e1": SPARK}], {"e0": SWITCH, "e1": SPARK}, {"e0": [SWITCH], "e1": [SPARK]}],
)
def test_lldp_in_every_shape_that_lldpd_gives_it(interface):
    switch, spark = ReadLldp.parse(json.dumps({"lldp": {"interface": interface}}))
    assert (switch.netdev, switch.system, switch.port, switch.bridge) == ("e0", "CRS812", "qsfp56-1-1", True)
    assert switch.macs == ("aa:bb:cc:dd:ee:01",)
    assert spark.macs == ("4c:bb:47:2d:1a:17", "4c:bb:47:2d:1a:16")
    assert not spark.bridge


def test_nobody_speaks_lldp():
    assert ReadLldp.parse('{"lldp": {}}') == ()


# Published lines of a GX10 and of a port without a cable.
def test_link_settings():
    up = ReadLinkSettings.parse(
        "Settings for enp1s0f1np1:\n\tSpeed: 200000Mb/s\n\tLanes: 4\n\tDuplex: Full\n\tLink detected: yes\n"
    )
    assert up == LinkSettings(speed_mb_per_s=200_000, duplex="Full", link=True)
    down = ReadLinkSettings.parse(
        "\tSpeed: Unknown!\n\tDuplex: Unknown! (255)\n\tLink detected: no (No cable)\n"
    )
    assert down == LinkSettings(speed_mb_per_s=None, duplex=None, link=False, reason="No cable")


def test_fec():
    head = "FEC parameters for enp1s0f1np1:\nSupported/Configured FEC encodings: Auto\n"
    assert ReadFec.parse(f"{head}Active FEC encoding: RS\n") == Fec(configured=("Auto",), active=("RS",))
    assert ReadFec.parse(f"{head}Active FEC encodings: None\n").active == ()


def test_driver_counters():
    output = "NIC statistics:\n     rx_err_lane_2_phy: 190\n     rx_corrected_bits_phy: 198\n"
    assert ReadDriverCounters.parse(output) == {"rx_err_lane_2_phy": 190, "rx_corrected_bits_phy": 198}


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


@pytest.mark.parametrize("fact", [ReadNetdevs, ReadTraffic, ReadRoutes, ReadNeighbours, ReadLldp])
@pytest.mark.parametrize(
    "output", ["Welcome to DGX OS!", "{}", "7", "null", "[" * 100_000, '[{"dst": 7}]', "[7]"]
)
def test_what_is_no_answer_is_an_error_that_names_the_cause(fact, output):
    with pytest.raises(FactError, match="printed") as caught:
        fact.parse(output)
    assert "profile" in caught.value.do


@pytest.mark.parametrize("fact", [ReadLinkSettings, ReadFec, ReadDriverCounters, ReadPciLink])
def test_a_driver_that_says_nothing_is_an_error(fact):
    with pytest.raises(FactError):
        fact.parse("no data available\n")


def test_nothing_that_a_terminal_acts_on_gets_through():
    with pytest.raises(FactError) as caught:
        ReadNetdevs.parse('[{"ifname": "\\u001b[31mx", "mtu": 1}]')
    assert "\x1b" not in str(caught.value)
    (one,) = ReadLldp.parse('{"lldp": {"interface": {"e0": {"chassis": {"\\u001b]0;x": {}}}}}}')
    assert "\x1b" not in one.system


JSON_FACTS = (ReadNetdevs, ReadTraffic, ReadRoutes, ReadNeighbours, ReadLldp)
TEXT_FACTS = (ReadLinkSettings, ReadFec, ReadDriverCounters, ReadPciLink, ReadPciLinks)

keys = st.sampled_from(
    ["ifname", "flags", "mtu", "address", "addr_info", "local", "prefixlen", "stats64", "rx", "tx", "bytes", "dst",
     "dev", "lladdr", "state", "gateway", "metric", "lldp", "interface", "chassis", "port", "id", "type", "value",
     "capability", "enabled", "e0", "linkinfo", "info_kind", "default", "mac"]
)  # fmt: skip
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | keys
    | st.sampled_from(["default", "10.0.0.0/8", "fe80::1", "1.2.3.4", "mac", "Bridge"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=30,
)  # fmt: skip


@given(documents)
def test_json_of_any_shape_is_a_value_or_a_fact_error(document):
    for fact in JSON_FACTS:
        for text in (json.dumps(document), json.dumps([document]), json.dumps({"lldp": document})):
            with contextlib.suppress(FactError):
                fact.parse(text)


lines = st.lists(
    st.sampled_from(
        ["Speed: ", "200000Mb/s", "Duplex: Full", "Link detected: ", "no (", ")", "Active FEC encoding: ", "RS",
         "\n", "LnkSta: Speed 32GT/s, Width x4", "0000:01:00.0 ", "current_link_speed:32.0 GT/s", "current_link_width:",
         "4", "٣", "\x00", " rx_bytes: 5\n"]
    )
    | st.text(max_size=8),
    max_size=30,
).map("".join)  # fmt: skip


@given(st.text() | lines)
def test_text_of_any_shape_is_a_value_or_a_fact_error(output):
    for fact in (*JSON_FACTS, *TEXT_FACTS):
        with contextlib.suppress(FactError):
            fact.parse(output)
