def test_a_rule(sparkfleet):
    code, out, err = sparkfleet("explain", "tp2-slower-27b")
    assert (code, err) == (0, "")
    assert "8.1 tok/s alone" in out
    assert "field report 001" in out


def test_no_such_rule(sparkfleet):
    code, out, err = sparkfleet("explain", "tp2-slower-27")
    assert (code, out) == (1, "")
    assert "tp2-slower-27b" in err


def test_a_word_of_a_rules_name_finds_it(sparkfleet):
    code, _, err = sparkfleet("explain", "DFlash-k6")
    assert code == 1
    assert "dflash-k6-kv-padding-oom" in err
