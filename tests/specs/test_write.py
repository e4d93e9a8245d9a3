import pytest
from hypothesis import given
from hypothesis import strategies as st
from inventory_texts import INVENTORY, KEY

from sparkfleet.specs.load import parse_inventory
from sparkfleet.specs.write import write_inventory


@pytest.mark.parametrize(
    "text", [INVENTORY, "fleet: f\nhead: 'on'\nnodes:\n  'on': {address: local}\n  '123': {address: 10.0.0.1, user: 'no',"
             f" host_key: '{KEY}'}}\n"],
)  # fmt: skip
def test_what_is_written_loads_to_the_same(text):
    inventory = parse_inventory(text)
    written = write_inventory(inventory, about=["found\x1b[31m"], doubts=["a\nb: c"])
    assert parse_inventory(written) == inventory
    assert "\x1b" not in written
    assert "# a\\nb: c" in written


def test_every_example_loads_to_the_same(pytestconfig):
    for file in (pytestconfig.rootpath / "docs" / "examples").glob("inventory*.yaml"):
        inventory = parse_inventory(file.read_text())
        assert parse_inventory(write_inventory(inventory)) == inventory


@given(st.text(), st.lists(st.text(max_size=40), max_size=3))
def test_no_comment_gets_out_of_its_line(about, doubts):
    inventory = parse_inventory(INVENTORY)
    assert parse_inventory(write_inventory(inventory, about=[about], doubts=doubts)) == inventory


def test_it_reads_as_a_person_would_write_it():
    written = write_inventory(parse_inventory(INVENTORY))
    assert f'  spark2: {{address: 10.0.0.2, user: u, host_key: "{KEY}"}}\n' in written
    assert "      - [{netdev: a0, rdma: r0, address: 192.168.100.1/24}]\n" in written
