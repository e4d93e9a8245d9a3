"""Parsers of network facts against hostile output: a value or a FactError that names the cause."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.network.arp_ndp import ReadNeighbours
from sparkfleet.hostfacts.network.ethtool import ReadFec, ReadLinkSettings
from sparkfleet.hostfacts.network.lldp import ReadLldp
from sparkfleet.hostfacts.network.netdev import ReadNetdevs
from sparkfleet.hostfacts.network.netdev_counters import ReadTraffic
from sparkfleet.hostfacts.network.pci_link import ReadPciLink, ReadPciLinks
from sparkfleet.hostfacts.network.routes import ReadRoutes

JSON_FACTS = (ReadNetdevs, ReadTraffic, ReadRoutes, ReadNeighbours, ReadLldp)
TEXT_FACTS = (ReadLinkSettings, ReadFec, ReadPciLink, ReadPciLinks)


@pytest.mark.parametrize("fact", JSON_FACTS)
@pytest.mark.parametrize(
    "output", ["Welcome to DGX OS!", "{}", "7", "null", "[" * 100_000, '[{"dst": 7}]', "[7]"]
)
def test_unexpected_output_is_an_error_that_names_the_cause(fact, output):
    with pytest.raises(FactError, match="printed") as caught:
        fact.parse(output)
    assert "profile" in caught.value.do


keys = st.sampled_from(
    ["ifname", "flags", "mtu", "address", "addr_info", "local", "prefixlen", "stats64", "rx", "tx", "bytes", "dst",
     "dev", "lladdr", "state", "gateway", "metric", "lldp", "interface", "chassis", "port", "id", "type", "value",
     "capability", "enabled", "e0", "linkinfo", "info_kind", "default", "mac"]
)  # fmt: skip
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | keys
    | st.sampled_from(["default", "10.0.0.0/8", "fe80::1", "1.2.3.4", "mac", "Bridge"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=30,
)  # fmt: skip


@given(documents)
def test_json_of_any_shape_is_a_value_or_a_fact_error(document):
    for fact in JSON_FACTS:
        for text in (json.dumps(document), json.dumps([document]), json.dumps({"lldp": document})):
            with contextlib.suppress(FactError):
                fact.parse(text)


lines = st.lists(
    st.sampled_from(
        ["Speed: ", "200000Mb/s", "Duplex: Full", "Link detected: ", "no (", ")", "Active FEC encoding: ", "RS",
         "\n", "LnkSta: Speed 32GT/s, Width x4", "0000:01:00.0 ", "current_link_speed:32.0 GT/s", "current_link_width:",
         "4", "٣", "\x00", " rx_bytes: 5\n"]
    )
    | st.text(max_size=8),
    max_size=30,
).map("".join)  # fmt: skip


@given(st.text() | lines)
def test_text_of_any_shape_is_a_value_or_a_fact_error(output):
    for fact in (*JSON_FACTS, *TEXT_FACTS):
        with contextlib.suppress(FactError):
            fact.parse(output)
