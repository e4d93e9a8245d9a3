"""The fleet's ports, closed to machines that are no nodes of it."""

import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from address_values import cable, inventory, spark
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.fabric import rails_helper
from sparkfleet.fabric.firewall import (
    addresses,
    closed_to_others,
    firewall_request,
    is_loaded,
    rails_of,
    rules,
)
from sparkfleet.fabric.rails_helper import Firewall, RailsHelperError, checked_firewall
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket

FLEET = inventory({"a": spark(1), "b": spark(2)}, (cable("a", "b", 100),))
KNOWN = {"a": ("10.0.0.1", "fd00::1"), "b": ("10.0.0.2",)}
REQUEST = {"netdevs": ["enp1s0f1np1"], "peers": ["10.0.0.2", "fd00::2"], "open": [11434]}


def test_nodes_and_rails_pass_and_the_rest_of_the_fleets_ports_is_closed():
    request = firewall_request(FLEET, "b", KNOWN, (11434,))
    assert request["netdevs"] == list(rails_of(FLEET, "b"))
    assert request["peers"] == ["10.0.0.1", "fd00::1"], "the other node's, not its own"
    text = rules(request)
    assert "ip saddr { 10.0.0.1 } accept" in text
    assert "ip6 saddr { fd00::1 } accept" in text
    assert "tcp dport { 11434 } accept" in text
    assert text.index("11434") < text.index("tcp dport 10002-60999 counter drop")
    assert 'iifname "lo" accept' in text


def test_the_gateway_is_open_on_the_head_alone():
    gateway = FLEET.gateway.model_copy(update={"host": "0.0.0.0", "port": 18000})
    fleet = FLEET.model_copy(update={"gateway": gateway})
    assert [firewall_request(fleet, node, KNOWN)["open"] for node in ("a", "b")] == [[18000], []]


def test_and_on_the_nodes_that_have_an_entry():
    nodes = {"a": spark(1), "b": spark(2), "c": spark(3)}
    gateway = FLEET.gateway.model_copy(update={"host": "0.0.0.0", "port": 18000, "nodes": ("c",)})
    fleet = inventory(nodes).model_copy(update={"gateway": gateway})
    known = {**KNOWN, "c": ("10.0.0.3",)}
    opened = {node: firewall_request(fleet, node, known)["open"] for node in nodes}
    assert opened == {"a": [18000], "b": [], "c": [18000]}
    assert "tcp dport { 18000 } accept" in rules(firewall_request(fleet, "c", known))


def test_a_nodes_addresses_are_those_that_are_no_rails():
    told = [
        {"ifname": "enP7s7", "addr_info": [{"local": "10.0.0.1"}, {"local": "fd00::1"}]},
        {"ifname": "enp1s0f1np1", "addr_info": [{"local": "192.168.100.10"}]},
        {},
    ]
    assert addresses(json.dumps(told), ["enp1s0f1np1"]) == ("10.0.0.1", "fd00::1")


def test_addresses_that_others_do_not_see_or_that_change_are_left_out():
    netdevs = {
        "wlP9s9": [
            {"local": "10.0.0.1"},
            {"local": "fd00::1", "dynamic": True, "mngtmpaddr": True},
            {"local": "fd00::a1", "temporary": True, "dynamic": True},
            {"local": "fd00::a2", "temporary": True, "deprecated": True},
            {"local": "fd01::1", "deprecated": True},
        ],
        "docker0": [{"local": "172.17.0.1"}],
        "br-0123456789ab": [{"local": "172.18.0.1"}],
        "virbr0": [{"local": "192.168.122.1"}],
        "br0": [{"local": "10.0.1.1"}],  # a bridge that may have the port of the LAN
        "br-lan": [{"local": "10.0.2.1"}],
    }
    found = [{"ifname": name, "addr_info": local} for name, local in netdevs.items()]
    assert addresses(json.dumps(found), ()) == ("10.0.0.1", "10.0.1.1", "10.0.2.1", "fd00::1")


def test_the_helper_takes_the_peers_of_a_large_fleet():
    """Of five nodes with two networks of IPv6 the helper refused the addresses: it counted them as rails."""
    nodes = {f"n{i}": spark(i) for i in range(1, 65)}
    known = {name: (*(f"10.0.{k}.{i}" for k in range(8)), *(f"fd00:{k + 1}::{i:x}" for k in range(8)))
             for i, name in enumerate(nodes, 1)}  # fmt: skip
    request = firewall_request(inventory(nodes), "n1", known)
    assert len(request["peers"]) == 63 * 16
    assert checked_firewall(json.dumps(dict(request))) == request


def test_the_longest_request_is_read_whole(monkeypatch, capsys):
    peers = [f"2001:db8:1111:2222:3333:4444:{k >> 8 | 0x1000:x}:{k & 255 | 0x1000:x}" for k in range(4096)]
    text = json.dumps(REQUEST | {"netdevs": ["enp1s0f1np1"] * 64, "peers": peers, "open": [60000] * 64})
    given = []
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    monkeypatch.setattr(rails_helper, "require_rails", lambda _: None)
    monkeypatch.setattr(rails_helper, "begin", lambda *words: given.append(words[1]) or {"token": "t"})
    assert rails_helper.main(["firewall", "60"]) == 0, capsys.readouterr().err
    assert given[0]["peers"] == peers


def test_what_others_lose_is_named():
    sockets = [
        ListeningSocket(address="*", port=11434, process="ollama", pid=1),
        ListeningSocket(address="*", port=22, process="sshd", pid=2),
        ListeningSocket(address="127.0.0.1", port=20001, process="vllm", pid=3),
        ListeningSocket(address="*", port=40000, process="raylet", pid=4),
    ]
    assert closed_to_others(sockets, {"open": []}) == ("ollama 11434", "raylet 40000")
    assert closed_to_others(sockets, {"open": [11434]}) == ("raylet 40000",)


# --- the helper -------------------------------------------------------------------------------------------------------


def test_a_request():
    assert checked_firewall(json.dumps(REQUEST)) == REQUEST
    assert checked_firewall("{}") == {}


@pytest.mark.parametrize(
    "change",
    [
        {"netdevs": ['x" accept; #']},
        {"netdevs": ["a b"]},
        {"netdevs": "lo"},
        {"peers": ["10.0.0.0/8"]},
        {"peers": ["0.0.0.0"]},
        {"peers": ["::"]},
        {"peers": ["fe80::1%x; accept"]},
        {"peers": [1]},
        {"peers": ["10.0.0.1"] * 4097},
        {"open": [22] * 65},
        {"netdevs": ["enp1s0f1np1"] * 65},
        {"open": ["22"]},
        {"open": [0]},
        {"open": [True]},
        {"open": [65536]},
        {"more": []},
    ],
)
def test_nothing_else_is_believed(change):
    with pytest.raises(RailsHelperError):
        checked_firewall(json.dumps(REQUEST | change))


@given(
    st.dictionaries(
        st.sampled_from(["netdevs", "peers", "open"]), st.lists(st.text() | st.integers() | st.none())
    )
)
def test_any_json_is_refused_or_plain(value):
    try:
        asked = checked_firewall(json.dumps(value))
    except RailsHelperError:
        return
    text = rails_helper.firewall_rules(asked) if asked else ""
    assert text.count("\n  }\n}") == (1 if asked else 0)
    assert text.count(";") == (2 if asked else 0), "no word of the request ends a rule"


@pytest.fixture
def firewall(tmp_path, monkeypatch):
    """One whose `nft` is a note of its commands."""
    told = []

    def run(*argv):
        told.append(argv)
        if argv[:2] == ("nft", "list"):
            if not loaded:
                raise RailsHelperError("no such table")
            return "table inet sparkfleet { }"
        if argv[:2] == ("nft", "-f"):
            loaded.append(argv[2])
        if argv[:2] == ("nft", "delete"):
            loaded.clear()
        return ""

    loaded = []
    monkeypatch.setattr(rails_helper, "run", run)
    monkeypatch.setattr(rails_helper.Firewall, "_at_boot", lambda self, wanted: told.append(("boot", wanted)))
    return Firewall(tmp_path / "etc" / "firewall.nft", tmp_path / "unit"), told, loaded


def test_a_first_firewall_is_taken_back_to_none(firewall):
    one, told, loaded = firewall
    before = one.save(REQUEST)
    one.apply(REQUEST)
    assert loaded == [str(one.file)]
    assert "tcp dport 10002-60999" in one.file.read_text()
    one.restore(before)
    assert (loaded, one.file.exists()) == ([], False)
    assert told[-1] == ("boot", False)


def test_a_change_is_taken_back_to_the_rules_before(firewall):
    one, _, loaded = firewall
    one.apply(REQUEST)
    first, before = one.file.read_text(), one.save(REQUEST)
    one.apply(REQUEST | {"open": [12000]})
    assert one.file.read_text() != first
    one.restore(before)
    assert one.file.read_text() == first
    assert loaded


def test_removed_is_removed(firewall):
    one, told, loaded = firewall
    one.apply(REQUEST)
    one.apply({})
    assert (loaded, one.file.exists(), told[-1]) == ([], False, ("boot", False))


RAILS = {
    "netdevs": ["enP2p1s0f1np1", "enp1s0f1np1"],
    "peers": ["10.0.0.9", "10.0.0.11"],
    "open": [18000, 12000],
}
"""Sets that `nft` prints in another order."""


@pytest.mark.skipif(shutil.which("nft") is None, reason="nftables are not installed")
@pytest.mark.parametrize("request_", [REQUEST, RAILS, {"netdevs": [], "peers": [], "open": []}])
def test_nft_takes_the_file(tmp_path, request_):
    file = tmp_path / "f.nft"
    file.write_text(rails_helper.firewall_rules(request_))
    inside = f"nft -f {file} && nft -f {file} && nft list table inet sparkfleet"
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", inside], capture_output=True, text=True, check=False, env=os.environ
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert is_loaded(done.stdout, request_)
    assert not is_loaded(done.stdout, request_ | {"open": [4]})
    assert not is_loaded("", request_)
    assert is_loaded("", {})


def test_the_table_is_loaded_after_the_owners_own_rules():
    """`/etc/nftables.conf` begins with `flush ruleset`: loaded later, it removed the table."""
    lines = rails_helper.firewall_unit("/usr/sbin/nft", Path("/etc/f.nft")).splitlines()
    assert {
        "After=nftables.service",
        "PartOf=nftables.service",
        "ReloadPropagatedFrom=nftables.service",
    } <= set(lines)
