from sparkfleet.hostfacts.network.netdev_counters import ReadTraffic


def test_traffic():
    stats = '{"rx": {"bytes": 7, "errors": 1, "dropped": 2}, "tx": {"bytes": 9}}'
    output = f'[{{"ifname": "e0", "stats64": {stats}}}, {{"ifname": "x"}}]'
    (traffic,) = ReadTraffic.parse(output)
    assert (traffic.rx_bytes, traffic.tx_bytes, traffic.rx_errors, traffic.rx_dropped) == (7, 9, 1, 2)
