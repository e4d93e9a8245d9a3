from sparkfleet.hostfacts.network.arp_ndp import ReadNeighbours


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
