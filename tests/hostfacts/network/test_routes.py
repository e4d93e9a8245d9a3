from sparkfleet.hostfacts.network.routes import ReadRoutes, management_netdev


def test_the_default_route_with_the_lowest_metric_is_the_management_network():
    routes = ReadRoutes.parse(
        '[{"dst": "default", "gateway": "192.168.1.1", "dev": "wlP9s9", "metric": 600},'
        '{"dst": "default", "gateway": "10.0.0.1", "dev": "enP7s7", "metric": 100},'
        '{"dst": "192.168.100.0/24", "dev": "enp1s0f1np1"}, {"type": "blackhole", "dst": "10.9.0.0/16"}]'
    )
    assert [route.to for route in routes] == ["0.0.0.0/0", "0.0.0.0/0", "192.168.100.0/24"]
    assert management_netdev(routes) == "enP7s7"
    assert management_netdev(()) is None
