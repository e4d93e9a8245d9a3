"""The inventory after a move of the head: its line, and the gateway's address on the new head."""

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fleet.lifecycle.moved_inventory import (
    gateway_host,
    head_named,
    host_named,
    inventory_after,
    name_head,
)
from sparkfleet.specs.load import parse_inventory

INVENTORY = "# mine\nfleet: home\nhead: a  # the quiet one\nnodes:\n  a: {address: local}\n"
KEY = 'user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"'
TWO = f"fleet: home\nhead: a\nnodes:\n  a: {{address: 10.0.0.1, {KEY}}}\n  b: {{address: 10.0.0.2, {KEY}}}\n"
BEFORE = parse_inventory(TWO)
AFTER = inventory_after(BEFORE, "b", BEFORE.gateway.host)


def test_only_the_line_of_the_head_changes(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text(INVENTORY)
    file.chmod(0o640)
    assert name_head(file, BEFORE, AFTER)
    assert file.read_text() == INVENTORY.replace("head: a", "head: b")
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_to_an_inventory_elsewhere_stays_a_link(tmp_path):
    (tmp_path / "kept").write_text(INVENTORY)
    (tmp_path / "inventory.yaml").symlink_to(tmp_path / "kept")
    assert name_head(tmp_path / "inventory.yaml", BEFORE, AFTER)
    assert (tmp_path / "inventory.yaml").is_symlink()
    assert (tmp_path / "kept").read_text() == INVENTORY.replace("head: a", "head: b")


def test_line_ends_of_windows_stay(tmp_path):
    file = tmp_path / "inventory.yaml"
    before = INVENTORY.replace("  # the quiet one", "").replace("\n", "\r\n").encode()
    file.write_bytes(before)
    assert name_head(file, BEFORE, AFTER)
    assert file.read_bytes() == before.replace(b"head: a", b"head: b")


def test_a_comment_with_the_same_words_stays_as_it_is():
    assert head_named("# was head: a\nhead: a\n", "a", "b") == "# was head: a\nhead: b\n"
    assert head_named("bulkhead: x  # head: a\nhead: a\n", "a", "b") == "bulkhead: x  # head: a\nhead: b\n"


@pytest.mark.parametrize("text", ["fleet: home\n", "{head: a}\n", "head: ab\n", "head: a\n---\nhead: a\n"])
def test_a_line_that_is_not_there_once_is_left_to_a_person(text):
    assert head_named(text, "a", "b") is None


def listening(host):
    return parse_inventory(f"{TWO}gateway: {{host: {host}}}\n")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.2")],
)
def test_the_gateway_moves_to_the_address_that_corresponds_to_its_own(host, expected):
    assert gateway_host(listening(host), "b") == expected


def test_a_gateway_on_an_address_that_the_new_head_cannot_have_is_refused():
    with pytest.raises(SpecError, match="no address of b that corresponds") as refused:
        gateway_host(listening("172.16.0.9"), "b")
    assert "0.0.0.0" in refused.value.do


def test_only_a_gateway_that_moves_is_written_into_an_inventory():
    assert "gateway" not in AFTER.model_fields_set
    assert inventory_after(BEFORE, "b", "10.0.0.2").gateway.host == "10.0.0.2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gateway: {host: 10.0.0.1}\n", "gateway: {host: 10.0.0.2}\n"),
        ("gateway:\n  host: '10.0.0.1'  # LAN\n", "gateway:\n  host: '10.0.0.2'  # LAN\n"),
        (
            "gateway: {port: 1, host: 10.0.0.1, nodes: all}\n",
            "gateway: {port: 1, host: 10.0.0.2, nodes: all}\n",
        ),
        ("gateway: {host: 10.0.0.12}\n", None),
        ("gateway: &g {host: 10.0.0.1}\nother: {host: 10.0.0.1}\n", None),
        ("virtual-host: 10.0.0.1\n", None),
    ],
)
def test_the_gateways_address_is_changed_where_it_stands_alone(text, expected):
    assert host_named(text, "10.0.0.1", "10.0.0.2") == expected


def test_both_lines_change_or_none(tmp_path):
    file, before = tmp_path / "inventory.yaml", listening("10.0.0.1")
    after = inventory_after(before, "b", "10.0.0.2")
    text = f"{TWO}gateway: {{host: 10.0.0.1}}\n"
    file.write_text(text)
    assert name_head(file, before, after)
    assert parse_inventory(file.read_text()) == after
    file.write_text(f"{TWO}gateway: &g {{host: 10.0.0.1}}\n# host: 10.0.0.1\n")
    assert not name_head(file, before, after)
    assert "head: a" in file.read_text()
