"""Stand-ins get values of the lab: those of its nodes, or made-up ones that every parser accepts."""

from __future__ import annotations

import re
import uuid
from ipaddress import IPv4Address, IPv6Address

import pytest

from sparkfleet.fleet.bundle.redact import Redactor
from sparkfleet.lab.replay.stand_ins import StandIns, rail_subnets

NODES = StandIns({"<node-1>": "spark1", "<subnet-1>.21": "10.77.3.11", "<mac-2>": "4c:bb:47:03:01:19"},
                 {"1": "10.77.3", "2": "192.168.100"})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<node-1> <node-12>", "spark1 node-12"),
        ("inet <subnet-1>.21/24 brd <subnet-1>.255", "inet 10.77.3.11/24 brd 10.77.3.255"),
        ("<subnet-1>.211 <subnet-2>.10", "10.77.3.211 192.168.100.10"),
        ("<subnet-7>.10", "198.18.7.10"),
        ("<mac-2> <mac-300>", "4c:bb:47:03:01:19 02:5f:ab:00:01:2c"),
        ("::ffff:<subnet-2>.10 v2", "0000:0000:0000:0000:0000:ffff:c0a8:640a v2"),
        ("fe80::<ipv6-3>/64 <ipv6-3>", "fe80::200:ff:fe00:3/64 fd5f::0:3"),
        ("<secret> <line with a prompt> SHA256:<key-1>", "<secret> <line with a prompt> SHA256:<key-1>"),
        ("<x-1> <node> <node-> a<b", "<x-1> <node> <node-> a<b"),
        ("<subnet-1>.999", "10.77.3.999"),
        ("::ffff:<subnet-1>.999", "::ffff:10.77.3.999"),
    ],
)
def test_a_text(text: str, expected: str) -> None:
    assert NODES.fill(text) == expected


@pytest.mark.parametrize("number", ["1", "4711", "999999"])
def test_made_up_values_have_the_form_of_real_ones(number: str) -> None:
    def filled(kind: str) -> str:
        return NODES.fill(f"<{kind}-{number}>")

    assert re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", filled("mac"))
    assert re.fullmatch(r"([0-9a-f]{4}:){3}[0-9a-f]{4}", filled("guid"))
    assert re.fullmatch(r"[0-9a-f]{32}", filled("machine-id"))
    assert uuid.UUID(filled("uuid"))
    assert IPv6Address(filled("ipv6")).is_private
    assert IPv6Address(NODES.fill(f"fe80::<ipv6-{number}>")).is_link_local
    assert IPv4Address(NODES.fill(f"<subnet-{number}>.7")).is_private
    for kind in ("host", "user", "serial", "mail"):
        assert re.fullmatch(r"[a-z0-9@.-]+", filled(kind))


def test_what_redaction_replaces_is_filled_again() -> None:
    text = (
        "4c:bb:47:00:11:22 10.1.2.3/24 fe80::1:2 2001:db8::1 anna@example.com serial: 12345678 /home/anna/x annas-spark"
        " 0000:0000:0000:0000:0000:ffff:0a01:0203 GPU-12345678-1234-1234-1234-123456789abc 4cbb:4703:0016:0102"
        f" machine-id:{'7' * 32}"
    )
    redacted = Redactor((), {"node": ["annas-spark"]}).text(text)
    assert "anna" not in redacted
    assert "<" not in NODES.fill(redacted)


def test_rails_in_one_subnet_stay_in_one() -> None:
    found = rail_subnets(["<subnet-4>.10/24", "<subnet-4>.11/24", "<subnet-9>.10/24", "10.0.0.1/24"])
    assert found == {"4": "192.168.100", "9": "192.168.101"}
