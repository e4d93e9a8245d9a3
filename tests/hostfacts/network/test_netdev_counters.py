from sparkfleet.hostfacts.network.netdev_counters import ReadTraffic


def test_traffic():
    stats = '{"rx": {"bytes": 7}, "tx": {"bytes": 9}}'
    output = f'[{{"ifname": "e0", "stats64": {stats}}}, {{"ifname": "x"}}]'
    (traffic,) = ReadTraffic.parse(output)
    assert (traffic.netdev, traffic.tx_bytes) == ("e0", 9)
