from sparkfleet.fabric.ports import half_of, jack_of, rail_netdevs


def test_the_management_network_is_never_a_rail(netdev, spark):
    view = spark(1, netdev(1, "enp1s0f0np0"))
    assert [one.name for one in rail_netdevs(view)] == ["enp1s0f0np0"]
    assert rail_netdevs(view.model_copy(update={"management": "enp1s0f0np0"})) == ()


def test_names_pair_the_halves():
    assert jack_of("enp1s0f1np1") == jack_of("enP2p1s0f1np1") == "port 1"
    assert (half_of("enp1s0f1np1"), half_of("enP2p1s0f1np1")) == (0, 2)
    assert jack_of("eth1") == "eth1"
