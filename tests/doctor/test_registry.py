"""The registry: every check has a name, covers rules that exist, and is in the documents."""

import inspect
import re
from pathlib import Path

from sparkfleet.doctor import registry
from sparkfleet.doctor.check import Check
from sparkfleet.knowledge.rules.rules import doctor_rules


def test_checks_cover_rules_that_exist():
    assert {rule.id for rule in doctor_rules()} >= registry.COVERED


def test_every_check_of_a_theme_is_registered_and_named_once():
    found = [
        value
        for module in vars(registry).values()
        if inspect.ismodule(module)
        for value in vars(module).values()
        if isinstance(value, Check)
    ]
    assert {check.id for check in found} == {check.id for check in registry.CHECKS}
    assert len({check.id for check in registry.CHECKS}) == len(registry.CHECKS)


def test_the_document_lists_every_check():
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for check in registry.CHECKS:
        assert f"| `{check.id}` | {check.title} |" in text
    listed = re.findall(r"^\| \w+ \| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        [*(check.id for check in registry.CHECKS), registry.SILENT, registry.CHANGED]
    )
