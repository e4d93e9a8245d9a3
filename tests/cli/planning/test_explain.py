import json

from sparkfleet.knowledge.rules.rules import load_book


def test_a_rule(sparkfleet):
    code, out, err = sparkfleet("explain", "tp2-slower-27b")
    assert (code, err) == (0, "")
    assert "8.1 tok/s for one user" in out
    assert "field report 001" in out


def test_all_rules_are_listed(sparkfleet):
    rules = {rule.id: rule.title for rule in load_book().rules}
    code, out, err = sparkfleet("explain")
    lines = out.splitlines()
    assert (code, err, lines[-1].split()[0]) == (0, "", str(len(rules)))
    assert lines[:-1:2] == sorted(rules)
    assert f"    {rules['tp2-slower-27b']}" == lines[lines.index("tp2-slower-27b") + 1]
    listed = json.loads(sparkfleet("explain", "--json")[1])["rules"]
    assert {one["id"]: one["title"] for one in listed} == rules


def test_no_such_rule(sparkfleet):
    code, out, err = sparkfleet("explain", "tp2-slower-27")
    assert (code, out) == (1, "")
    assert "tp2-slower-27b" in err


def test_a_rule_that_resembles_none_gets_the_command_that_lists_them(sparkfleet):
    code, _, err = sparkfleet("explain", "zzz")
    assert (code, err.splitlines()[-1]) == (1, "`sparkfleet explain` lists them all.")


def test_a_word_of_a_rules_name_finds_it(sparkfleet):
    code, _, err = sparkfleet("explain", "DFlash-k6")
    assert code == 1
    assert "dflash-k6-kv-padding-oom" in err


def test_for_programs(sparkfleet):
    code, out, _ = sparkfleet("explain", "tp2-slower-27b", "--json")
    told = json.loads(out)
    assert (code, told["version"], told["rule"]["id"]) == (0, 1, "tp2-slower-27b")
    assert told["rule"]["sources"]
    assert told["rule"]["example"]["silent"] == [
        {"engine": "sglang", "weight_gb": 28.0, "fits_one_node": True, "tp": 1.0, "nodes": 1.0}
    ]


def test_for_programs_why_an_issue_is_no_rule(sparkfleet):
    code, out, _ = sparkfleet("explain", load_book().not_rules[0][0], "--json")
    assert code == 0
    assert json.loads(out)["not_a_rule"] == load_book().not_rules[0][1]
