from sparkfleet.remote.netdev import netdev_of


def test_the_netdev_of_loopback():
    assert netdev_of("127.0.0.1") == "lo"
    assert netdev_of("localhost") == "lo"


def test_an_address_that_no_netdev_has():
    assert netdev_of("192.0.2.1") == ""
    assert netdev_of("no-such-host.invalid") == ""
