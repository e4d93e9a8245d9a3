import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.network.ethtool import Fec, LinkSettings, ReadFec, ReadLinkSettings


# Published lines of a GX10 and of a port without a cable.
def test_link_settings():
    up = ReadLinkSettings.parse(
        "Settings for enp1s0f1np1:\n\tSpeed: 200000Mb/s\n\tLanes: 4\n\tDuplex: Full\n\tLink detected: yes\n"
    )
    assert up == LinkSettings(speed_mb_per_s=200_000, link=True)
    down = ReadLinkSettings.parse(
        "\tSpeed: Unknown!\n\tDuplex: Unknown! (255)\n\tLink detected: no (No cable)\n"
    )
    assert down == LinkSettings(speed_mb_per_s=None, link=False, reason="No cable")


def test_fec():
    head = "FEC parameters for enp1s0f1np1:\nSupported/Configured FEC encodings: Auto\n"
    assert ReadFec.parse(f"{head}Active FEC encoding: RS\n") == Fec(active=("RS",))
    assert ReadFec.parse(f"{head}Active FEC encodings: None\n").active == ()


@pytest.mark.parametrize("fact", [ReadLinkSettings, ReadFec])
def test_missing_fields_are_an_error(fact):
    with pytest.raises(FactError):
        fact.parse("no data available\n")
