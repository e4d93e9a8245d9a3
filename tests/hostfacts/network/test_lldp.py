import json

import pytest

from sparkfleet.hostfacts.network.lldp import ReadLldp

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


def test_no_lldp_neighbour():
    assert ReadLldp.parse('{"lldp": {}}') == ()


def test_control_characters_are_removed():
    (one,) = ReadLldp.parse('{"lldp": {"interface": {"e0": {"chassis": {"\\u001b]0;x": {}}}}}}')
    assert "\x1b" not in one.system
