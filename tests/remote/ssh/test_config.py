from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkfleet.errors import NodeError
from sparkfleet.remote.ssh.config import SshConfig
from sparkfleet.specs.inventory import Jump, Node

KEY = "SHA256:" + "A" * 43
OTHER = "SHA256:" + "B" * 43
KNOWN = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def configured(home, text: str) -> SshConfig:
    (home / ".ssh" / "config").write_text(text)
    return SshConfig(home)


def node(**fields: object) -> Node:
    return Node(**{"address": "spark1", "user": "nvidia", "host_key": KEY, **fields})


def test_without_a_configuration_the_inventory_is_all(home):
    (hop,) = SshConfig(home).route("spark1", node(address="192.168.1.11", port=2222))
    assert (hop.host, hop.port, hop.user, hop.pins) == ("192.168.1.11", 2222, "nvidia", {KEY})
    assert [path.name for path in hop.identities] == ["id_ed25519", "id_ecdsa", "id_rsa"]
    assert not hop.only_identities


def test_the_configuration_completes_the_inventory(home):
    config = configured(
        home,
        "Host spark1\n HostName 10.0.0.5\n Port 2200\n User other\n IdentityFile ~/.ssh/special\n IdentitiesOnly yes\n",
    )
    (hop,) = config.route("spark1", node())
    assert (hop.host, hop.port, hop.user) == ("10.0.0.5", 2200, "nvidia")
    assert hop.identities == (home / ".ssh" / "special",)
    assert hop.only_identities


def test_the_inventory_wins(home):
    jump = Jump(address="gate", port=22, user="me", host_key=OTHER)
    config = configured(home, "Host *\n Port 2200\n IdentityFile /special\n")
    gate, hop = config.route("spark1", node(port=22, identity_file="~/mine", jump=jump))
    assert (hop.port, hop.only_identities) == (22, True)
    assert [path.name for path in hop.identities] == ["mine"]
    assert (gate.host, gate.port, gate.user, gate.pins) == ("gate", 22, "me", {OTHER})


def test_includes_are_followed(home):
    (home / ".ssh" / "conf.d").mkdir()
    (home / ".ssh" / "conf.d" / "a").write_text("Host spark1\n HostName 10.0.0.7\n")
    (hop,) = configured(home, "Include conf.d/* missing\n").route("spark1", node())
    assert hop.host == "10.0.0.7"


def test_proxy_jumps_need_a_known_host_key(home):
    config = configured(home, "Host spark1\n ProxyJump me@gate:2200\nHost gate\n HostName gate.example\n")
    with pytest.raises(NodeError, match="host key of the jump host gate is not known") as caught:
        config.route("spark1", node())
    assert "`jump`" in caught.value.do
    (home / ".ssh" / "known_hosts").write_text(f"[gate.example]:2200 {KNOWN}\n")
    gate, last = config.route("spark1", node())
    assert (gate.host, gate.port, gate.user) == ("gate.example", 2200, "me")
    assert len(gate.pins) == 1
    assert all(pin.startswith("SHA256:") for pin in gate.pins)
    assert last.host == "spark1"


def test_lines_of_known_hosts_without_a_usable_key_are_skipped(home):
    """A truncated line, a comment that is no UTF-8, and a key that is none ended the program."""
    bad = b"gate ssh-ed25519 AAAAB\n# caf\xe9\ngate ssh-rsa AAAAB3NzaC1yc2E=\n"
    (home / ".ssh" / "known_hosts").write_bytes(bad + f"gate {KNOWN}\n".encode())
    gate, _ = configured(home, "Host spark1\n ProxyJump gate\n").route("spark1", node())
    assert len(gate.pins) == 1


def test_several_jumps_are_taken_in_order(home):
    (home / ".ssh" / "known_hosts").write_text(f"one,two,[::1]:99,three {KNOWN}\n")
    config = configured(home, "Host spark1\n ProxyJump one,[::1]:99\nHost one\n ProxyJump two\n")
    assert [hop.host for hop in config.route("spark1", node())] == ["two", "one", "::1", "spark1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Host spark1\n ProxyCommand nc %h %p\n", "ProxyCommand"),
        ("Host spark1\n ProxyJump spark1\n", "back to itself"),
        ("Host spark1\n Port zero\n", "is not a port number"),
        ("Host spark1\n ProxyJump ::\n", "not known"),
        ("Host 'spark1\n", "cannot be used"),
        ("nonsense\n", "cannot be used"),
        ("Include config\nInclude config\n", "more than 100 files, or itself"),
    ],
)
def test_unsupported_options_are_reported(home, text, said):
    with pytest.raises(NodeError, match=said):
        configured(home, text).route("spark1", node())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text()
    | st.lists(
        st.sampled_from(
            [
                "Host *",
                "Host spark1",
                "Match all",
                "Include *",
                "Include '",
                "Port 5",
                "Port",
                "=",
                "ProxyJump a@b:1,c",
                "ProxyJump none",
                "IdentityFile %d/%h",
                "HostName %h.x",
                "User %u",
                "\x00",
                "Match",
                "HostName %%%",
                "IdentityFile ~nobody/x",
            ]
        )
    ).map("\n".join)
)
def test_any_configuration_is_read_or_refused(home, text):
    try:
        route = configured(home, text).route("spark1", node())
    except NodeError:
        return
    assert route[-1].user == "nvidia"
