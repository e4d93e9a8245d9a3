from __future__ import annotations

import json


def test_status_has_one_line_for_each_part(sparkfleet) -> None:
    code, out, err = sparkfleet("knowledge", "status", "--offline")
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line.startswith(("images ", "rules ", "factors "))]
    assert [line.split()[0] for line in lines] == ["images", "rules", "factors"]
    assert lines[0].split()[3].isdigit()  # days
    assert lines[0].split()[4] == "d"
    assert "Upstream was not asked" in out


def test_status_as_json(sparkfleet) -> None:
    code, out, _ = sparkfleet("knowledge", "status", "--offline", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["version"] == 1
    rules = next(part for part in found["parts"] if part["id"] == "rules")
    assert rules["entries"] > 100
    assert rules["age_days"] >= 0
    assert (rules["upstream"], rules["news"]) == ("not asked", [])
    assert set(rules) == {
        "id", "file", "entries", "newest", "fresh_days", "age_days", "old", "upstream", "news"
    }  # fmt: skip


def test_old_parts_are_named_with_the_work_that_renews_them(sparkfleet, monkeypatch) -> None:
    from datetime import date

    from sparkfleet.cli.planning import knowledge

    class Later(date):
        @classmethod
        def today(cls) -> date:
            return date(2036, 1, 1)

    monkeypatch.setattr(knowledge, "date", Later)
    _, out, _ = sparkfleet("knowledge", "status", "--offline")
    (line,) = [line for line in out.splitlines() if line.startswith("advisories: ")]
    assert "days old, more than 30: look for advisories (docs/knowledge.md)." in line
