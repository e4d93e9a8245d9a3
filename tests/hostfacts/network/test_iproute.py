import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.network.iproute import Entry, Word, entries, mac_of


class Device(Entry):
    ifname: Word


def test_empty_objects_and_unknown_fields_are_ignored():
    assert entries(Device, '[{}, {"ifname": "e0", "qdisc": "mq"}]', "devices") == [Device(ifname="e0")]
    assert entries(Device, "\n", "devices") == []


def test_an_error_names_the_wrong_field():
    with pytest.raises(FactError, match="ifname"):
        entries(Device, '[{"ifname": "two words"}]', "devices")


def test_macs():
    assert mac_of("3C:6D:66:CC:B3:B7") == "3c:6d:66:cc:b3:b7"
    assert mac_of("10.0.0.1") == ""
