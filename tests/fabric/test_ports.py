from sparkfleet.fabric.ports import half_of, jack_of, rail_netdevs


def test_the_management_network_is_never_a_rail(netdev, spark):
    view = spark(1, netdev(1, "enp1s0f0np0"))
    assert [one.name for one in rail_netdevs(view)] == ["enp1s0f0np0"]
    assert rail_netdevs(view.model_copy(update={"management": "enp1s0f0np0"})) == ()


def test_names_pair_the_halves():
    assert jack_of("enp1s0f1np1") == jack_of("enP2p1s0f1np1") != jack_of("enp1s0f0np0")
    assert (half_of("enp1s0f1np1"), half_of("enP2p1s0f1np1")) == (0, 2)
    assert jack_of("eth1") == "eth1"


def test_other_names_are_paired_by_their_pci_address():
    assert jack_of("fast0", "0000:01:00.1") == jack_of("fast1", "0002:01:00.1") == jack_of("enp1s0f1np1")
    assert jack_of("fast0", "0000:01:00.0") != jack_of("fast1", "0000:41:00.0"), "two cards"
    assert (half_of("fast0", "0000:01:00.1"), half_of("fast1", "0002:01:00.1")) == (0, 2)
