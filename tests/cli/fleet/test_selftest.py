from __future__ import annotations


def test_a_node_that_is_not_in_the_inventory_is_no_question(sparkfleet, tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    code, out, err = sparkfleet("selftest", "nope", "-i", file)
    assert (code, out) == (1, "")
    assert 'unknown node "nope". Known: a.' in err


def test_neither_is_a_node_to_reboot(sparkfleet, tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    code, out, err = sparkfleet("selftest", "--no-engines", "--reboot", "nope", "-i", file)
    assert (code, out) == (1, "")
    assert 'unknown node "nope". Known: a.' in err
