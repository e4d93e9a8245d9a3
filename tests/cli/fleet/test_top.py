def test_without_a_terminal_it_names_the_verbs_that_do_without(sparkfleet, tmp_path):
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    code, _, err = sparkfleet("top", "-i", str(tmp_path / "inventory.yaml"))
    assert code == 1
    assert "`sparkfleet status --watch`" in err
