import io
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.fabric import rails_helper
from sparkfleet.fabric.rails_helper import Netplan, RailsHelperError, checked

# The helper forks before it starts anything; a test run may have threads of others.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

PORT = {"netdev": "enp1s0f1np1", "address": "192.168.100.10/24", "mtu": 9000}


def request(**changes):
    return json.dumps({"ports": [PORT | changes]})


def test_a_request():
    assert checked(request()) == [PORT]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"ports": []}',
        '{"ports": 7}',
        json.dumps({"ports": [PORT, PORT]}),
        json.dumps({"ports": [PORT] * 65}),
        request(netdev="x; reboot"),
        request(netdev="../../etc"),
        request(netdev="-j"),
        request(netdev="a\nb"),
        request(netdev=7),
        request(address="8.8.8.8/24"),
        request(address="127.0.0.1/8"),
        request(address="192.168.100.10/24\n  x: y"),
        request(address=3232261130),
        request(address="fe80::1%x: y/64"),
        request(mtu="9000"),
        request(mtu=68),
        request(mtu=True),
        "[" * 100_000,
    ],
)
def test_nothing_else_is_believed(text):
    with pytest.raises(RailsHelperError):
        checked(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["netdev", "address", "mtu", "ports"]), inner)
    ),
)


@given(values)
def test_any_json_is_refused_or_plain(value):
    for asked in (value, {"ports": value}, {"ports": [value]}):
        try:
            ports = checked(json.dumps(asked))
        except RailsHelperError:
            continue
        assert all(set(port) == {"netdev", "address", "mtu"} for port in ports)


RUNNING = {
    "mtu": 1500,
    "inet6_addr_gen_mode": "eui64",
    "addr_info": [{"local": "fe80::1", "prefixlen": 64}],
}


@pytest.fixture
def netplan(tmp_path, monkeypatch):
    """The netplan back-end with a `netplan` and an `ip` that only record their arguments; the netdev is as `RUNNING`."""
    told = []

    def run(*argv):
        told.append(argv)
        return json.dumps([RUNNING]) if argv[:2] == ("ip", "-j") else ""

    (tmp_path / "net" / PORT["netdev"]).mkdir(parents=True)
    monkeypatch.setattr(rails_helper, "NETDEVS", tmp_path / "net")
    monkeypatch.setattr(rails_helper, "is_simulated", lambda: True)
    monkeypatch.setattr(rails_helper, "run", run)
    return Netplan(tmp_path / "60-sparkfleet.yaml"), told


def test_netplan_writes_a_private_file_and_has_it_read(netplan):
    backend, told = netplan
    backend.apply([PORT])
    assert "192.168.100.10/24" in backend.file.read_text()
    assert stat.S_IMODE(backend.file.stat().st_mode) == 0o600
    assert told == [("netplan", "generate"), ("netplan", "apply")]


def test_netplan_puts_back_what_there_was(netplan):
    backend, told = netplan
    bare = backend.save([PORT])
    backend.apply([PORT])
    text, before = backend.file.read_text(), backend.save([PORT])
    backend.apply([PORT | {"mtu": 1500}])
    backend.restore(before)
    assert backend.file.read_text() == text
    assert told[-1] == ("netplan", "apply"), "netplan sets what its file has"
    backend.restore(bare)
    assert not backend.file.exists()


def set_after_restore(netplan):
    """The words of `ip` after netplan has let go of a netdev."""
    backend, told = netplan
    bare = backend.save([PORT])
    backend.apply([PORT])
    told.clear()
    backend.restore(bare)
    assert told[0] == ("netplan", "apply")
    return [" ".join(argv[1:]) for argv in told[1:]]


def test_a_netdev_that_netplan_lets_go_of_gets_its_link_local_address_and_mtu_again(netplan):
    """systemd-networkd takes all addresses from it and leaves the MTU: the cable was no longer found by IPv6."""
    assert set_after_restore(netplan) == [
        "link set dev enp1s0f1np1 addrgenmode eui64",
        "addr flush dev enp1s0f1np1",
        "link set dev enp1s0f1np1 mtu 1500 up",
        "addr replace fe80::1/64 dev enp1s0f1np1",
    ]


def test_a_netdev_of_networkmanager_keeps_the_addresses_that_it_sets(netplan, monkeypatch):
    monkeypatch.setitem(RUNNING, "inet6_addr_gen_mode", "none")
    assert set_after_restore(netplan) == ["link set dev enp1s0f1np1 mtu 1500"]


def test_a_netdev_of_another_netplan_file_is_left_to_it(netplan):
    netplan[0].file.with_name("40-cx7.yaml").write_text("network: {ethernets: {enp1s0f1np1: {mtu: 4200}}}\n")
    assert set_after_restore(netplan) == []


def test_files_that_netplan_refuses_are_named_before_anything_changes(netplan, monkeypatch):
    """The way back needs `netplan apply`, too, and that fails as well then."""

    def run(*argv):
        raise RailsHelperError("netplan generate: /etc/netplan/90-x.yaml:2:1: Invalid YAML")

    monkeypatch.setattr(rails_helper, "run", run)
    with pytest.raises(RailsHelperError, match=r"nothing was changed: .*90-x.yaml:2:1"):
        netplan[0].save([PORT])


def test_warnings_of_netplan_do_not_hide_its_error():
    """netplan 1.0 warns of each file that others may read, and its error comes last."""
    warning = "** (generate:7): WARNING **: 03:53:00.676: Permissions for /etc/netplan/9.yaml are too open."
    with pytest.raises(RailsHelperError, match=r"^sh -c .*: 9.yaml:2:1: Invalid YAML$"):
        rails_helper.run("sh", "-c", 'echo "$1" >&2; echo 9.yaml:2:1: Invalid YAML >&2; exit 1', "", warning)


class Remembering:
    """A back-end that keeps its state in a file, so that the process that is left behind can be seen to act."""

    name = "remembering"

    def __init__(self, file):
        self.file = file

    def save(self, ports):
        return self.file.read_text()

    def apply(self, ports):
        if ports[0]["mtu"] == 1280:
            raise RailsHelperError("no such MTU")
        self.file.write_text("new")

    def restore(self, saved):
        self.file.write_text(saved)


@pytest.fixture
def change(tmp_path, monkeypatch):
    monkeypatch.setattr(rails_helper, "STATE", tmp_path / "state")
    monkeypatch.setattr(rails_helper, "present", lambda ports: None)
    file = tmp_path / "addresses"
    file.write_text("old")
    yield Remembering(file)
    # Whatever a test leaves pending ends here.
    os.close(rails_helper._lock(rails_helper.state_dir(), wait=True))


def begin(change, seconds=60, **port):
    return rails_helper.apply(seconds, request(**port), change)["token"]


def test_what_is_confirmed_stays(change):
    token = begin(change)
    rails_helper.answer(token, b"k")
    assert change.file.read_text() == "new"
    with pytest.raises(RailsHelperError, match="no such change"):
        rails_helper.answer(token, b"r")


def test_what_is_rolled_back_is_as_it_was(change):
    rails_helper.answer(begin(change), b"r")
    assert change.file.read_text() == "old"


def test_what_nobody_confirms_goes_back_by_itself(change):
    token = begin(change, seconds=0.05)
    os.close(rails_helper._lock(rails_helper.state_dir(), wait=True))  # held until it is over
    assert change.file.read_text() == "old"
    with pytest.raises(RailsHelperError, match="taken back, before"):
        rails_helper.answer(token, b"k")


def test_a_change_that_fails_is_taken_back_at_once(change):
    with pytest.raises(RailsHelperError, match="no such MTU"):
        begin(change, mtu=1280)
    assert change.file.read_text() == "old"


def test_a_change_that_a_disk_refuses_is_taken_back_at_once(change, monkeypatch):
    def half(ports):
        change.file.write_text("half")
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(change, "apply", half)
    with pytest.raises(OSError, match="Read-only"):
        begin(change)
    assert change.file.read_text() == "old"


@pytest.fixture
def unrestorable(change, monkeypatch):
    """A change whose way back a disk refuses, after another that was taken back."""
    rails_helper.answer(begin(change), b"r")

    def restore(saved):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(change, "restore", restore)
    return change


def test_a_way_back_that_a_disk_refuses_is_an_error(unrestorable):
    token = begin(unrestorable)
    with pytest.raises(RailsHelperError, match=r"not taken back: .*Read-only"):
        rails_helper.answer(token, b"r")
    with pytest.raises(RailsHelperError, match="no such change"):
        rails_helper.answer(token, b"r")


def test_an_error_of_the_way_back_does_not_hide_that_of_the_change(unrestorable):
    with pytest.raises(RailsHelperError, match=r"no such MTU; the change was not taken back: .*Read-only"):
        begin(unrestorable, mtu=1280)


def test_a_file_is_on_the_disk_before_it_has_its_name(netplan, monkeypatch):
    backend, _ = netplan
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(backend.file.exists()))
    backend.apply([PORT])
    assert synced == [False, True], "its bytes, then its name"


def test_only_one_change_at_a_time_and_only_by_its_token(change):
    token = begin(change)
    with pytest.raises(RailsHelperError, match="another change waits"):
        begin(change)
    with pytest.raises(RailsHelperError, match="no such change"):
        rails_helper.answer("0" * 32, b"k")
    rails_helper.answer(token, b"r")


@pytest.mark.parametrize(
    "words", [[], ["apply"], ["apply", "-1"], ["apply", "601"], ["apply", "1e9"], ["confirm"], ["reboot"]]
)
def test_other_commands_are_refused(words, capsys):
    assert rails_helper.main(words) == 1
    assert "expected: apply" in capsys.readouterr().err


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node's netdevs: a ConnectX, a VLAN on it, the management port, and Wi-Fi; and its netplan files."""
    netdevs, files = tmp_path / "net", tmp_path / "netplan"
    for name, vendor, driver in (
        ("enp1s0f1np1", "0x15b3", "mlx5_core"),
        ("enP7s7", "0x10ec", "r8127"),
        ("wlP9s9", "0x14c3", "mt7925e"),
        ("enp1s0f1np1.7", "", ""),
    ):
        (netdevs / name).mkdir(parents=True)
        if vendor:
            (netdevs / name / "device").mkdir()
            (netdevs / name / "device/vendor").write_text(f"{vendor}\n")
            (netdevs / name / "device/driver").symlink_to(f"../../bus/pci/drivers/{driver}")
    files.mkdir()
    (files / "50-wifi.yaml").write_text("wlP9s9: {access-points: {home: {password: secret-of-the-wifi}}}\n")
    (files / "40-cx7.yaml").write_text("network:\n  ethernets:\n    enp1s0f1np1: {dhcp4: true}\n")
    monkeypatch.setattr(rails_helper, "NETDEVS", netdevs)
    monkeypatch.setattr(rails_helper, "NETPLAN", files)
    monkeypatch.setattr(rails_helper, "NETPLAN_FILE", files / "60-sparkfleet.yaml")
    monkeypatch.setattr(rails_helper, "LAB", tmp_path / "lab")
    monkeypatch.setattr(rails_helper, "run", lambda *argv: "[]")
    return tmp_path


def test_show_gives_no_content_of_others_files(node):
    own = rails_helper.rendered([PORT])
    (node / "netplan/60-sparkfleet.yaml").write_text(own + "  wifis: {x: {password: secret-of-another}}\n")
    shown = rails_helper.show(Netplan(node / "netplan/60-sparkfleet.yaml"))
    assert "secret" not in json.dumps(shown)
    assert shown["own"] == own + "# (a line of somebody else)\n"
    assert shown["others"] == {str(node / "netplan/40-cx7.yaml"): ["enp1s0f1np1"]}


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("ethernets:\n    all: {match: {name: en*}, dhcp4: true}\n", True),
        ("ethernets:\n    all:\n      match:\n        name: 'enp1s0f?np1'\n", True),
        ("ethernets:\n    NM-1:\n      match:\n        name: enp1s0f1np1\n", True),
        ("ethernets:\n    x:\n      match:\n        macaddress: 4C:BB:47:00:00:01\n", True),
        ("ethernets:\n    x:\n      match: {driver: mlx5_core}\n", True),
        ("bonds:\n    b:\n      interfaces: [enp1s0f1np1]\n", True),
        ("ethernets: {}  # enp1s0f1np1: is a rail\n", False),
        ("vlans:\n    enp1s0f1np1.7: {id: 7, link: enP7s7}\n", False),
        ("wifis:\n    w: {match: {name: wl*}}\n", False),
    ],
)
def test_files_that_match_a_rail_by_a_pattern(node, lines, named):
    """`match: {name: en*}` took the rails with DHCP, and nothing named it."""
    (node / "net/enp1s0f1np1/address").write_text("4c:bb:47:00:00:01\n")
    (node / "netplan/40-cx7.yaml").write_text(f"network:\n  {lines}")
    others = rails_helper.show(Netplan(node / "netplan/60-sparkfleet.yaml"))["others"]
    assert others == ({str(node / "netplan/40-cx7.yaml"): ["enp1s0f1np1"]} if named else {})


@pytest.mark.parametrize("netdev", ["enP7s7", "wlP9s9", "enp1s0f1np1.7"])
def test_only_ports_of_a_connectx_are_changed(node, netdev):
    rails_helper.present([PORT])
    with pytest.raises(RailsHelperError, match="no port of a ConnectX"):
        rails_helper.present([PORT | {"netdev": netdev}])
    (node / "lab").symlink_to("/etc/hostname")
    with pytest.raises(RailsHelperError, match="no port of a ConnectX"):
        rails_helper.present([PORT | {"netdev": netdev}])
    (node / "lab").unlink()
    (node / "lab").touch()
    if os.geteuid() == 0:
        rails_helper.present([PORT | {"netdev": netdev}])
        os.chown(node / "lab", 1000, 1000)
    with pytest.raises(RailsHelperError, match="no port of a ConnectX"):
        rails_helper.present([PORT | {"netdev": netdev}])


@pytest.mark.parametrize(
    ("netdev", "words"),
    [
        ("wlP9s9", "no port of a ConnectX"),
        ("enP7s7", "no port of a ConnectX"),
        ("enp1s0f1np1.7", "no port of a ConnectX"),
        ("nothing0", "no such device"),
    ],
)
def test_the_firewall_passes_packets_of_a_connectx_only(node, netdev, words, monkeypatch, capsys):
    """All packets of a rail pass: from the netdev of a Wi-Fi that would be everybody."""
    began = []
    monkeypatch.setattr(rails_helper, "begin", lambda *given: began.append(given) or {"token": "t"})

    def asked(*netdevs):
        text = json.dumps({"netdevs": netdevs, "peers": ["10.0.0.2"], "open": []})
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return rails_helper.main(["firewall", "60"])

    assert asked("enp1s0f1np1", netdev) == 1
    assert words in capsys.readouterr().err
    assert began == []
    assert asked("enp1s0f1np1") == 0
    assert len(began) == 1


@pytest.fixture
def arp(node, monkeypatch):
    """A rail and the port of the LAN as Linux has them, and the file of settings for after a reboot."""
    for name in ("enp1s0f1np1", "enP7s7"):
        (node / "conf" / name).mkdir(parents=True)
        for key in rails_helper.ARP:
            (node / "conf" / name / key).write_text("0\n")
    monkeypatch.setattr(rails_helper, "CONF", node / "conf")
    return node / "sysctl.d/60-sparkfleet-rails.conf"


def arp_settings(file):
    rail = rails_helper.CONF / "enp1s0f1np1"
    return [int((rail / key).read_text()) for key in ("arp_ignore", "arp_announce")], file.exists()


def test_a_rail_answers_arp_for_its_own_address_only_and_after_a_reboot_too(arp):
    """At a switch both halves of a port answered for both addresses, and `fabric apply` was undone: a neighbour had the
    MAC of the wrong half."""
    assert rails_helper.loose_netdevs(arp) == ["enp1s0f1np1"]
    strict = rails_helper.StrictArp(arp)
    before = strict.save([PORT])
    strict.apply([PORT])
    assert arp_settings(arp) == ([1, 2], True)
    assert arp.read_text().splitlines() == [
        "net/ipv4/conf/enp1s0f1np1/arp_ignore = 1",
        "net/ipv4/conf/enp1s0f1np1/arp_announce = 2",
    ]
    assert (rails_helper.CONF / "enP7s7/arp_ignore").read_text() == "0\n", "the LAN's port stays as it is"
    assert rails_helper.loose_netdevs(arp) == []
    strict.restore(before)
    assert arp_settings(arp) == ([0, 0], False)


def test_settings_of_arp_that_a_reboot_takes_away_are_named(arp):
    rails_helper.StrictArp(None).apply([PORT])
    assert arp_settings(arp) == ([1, 2], False)
    assert rails_helper.loose_netdevs(None) == [], "without netplan the addresses last as long"
    assert rails_helper.loose_netdevs(arp) == ["enp1s0f1np1"]


def test_addresses_come_back_although_arp_cannot_be_set(arp, tmp_path):
    addresses = Remembering(tmp_path / "addresses")
    addresses.file.write_text("old")
    rails = rails_helper.Rails(addresses, rails_helper.StrictArp(None))
    saved = rails.save([PORT])
    for key in rails_helper.ARP:
        (rails_helper.CONF / "enp1s0f1np1" / key).unlink()
    (rails_helper.CONF / "enp1s0f1np1").rmdir()
    addresses.file.write_text("new")
    with pytest.raises(OSError, match="enp1s0f1np1"):
        rails.restore(saved)
    assert addresses.file.read_text() == "old"
