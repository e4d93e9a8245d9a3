import json

import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.network.netdev import Netdev, ReadNetdevs

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
            "parentbus": "pci",
            "parentdev": "0000:01:00.1",
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
            "parentbus": "pci",
            "parentdev": "no address\u001b[2J",
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
    assert (rail.pci, wifi.pci, docker.pci) == ("0000:01:00.1", "", "")
    assert not wifi.carrier
    assert wifi.addresses[0].dynamic
    assert docker == Netdev(
        name="docker0", mac="", mtu=1500, up=True, carrier=False, state="UNKNOWN", kind="bridge"
    )


def test_control_characters_are_removed():
    with pytest.raises(FactError) as caught:
        ReadNetdevs.parse('[{"ifname": "\\u001b[31mx", "mtu": 1}]')
    assert "\x1b" not in str(caught.value)
