"""docs/faults.md: each fault has a test that exists, and real parts are claimed only for those that use them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/faults.md"
ROW = re.compile(
    r"^\| (?P<fault>[^|]+) \| (?P<expected>[^|]+) \| `(?P<file>tests/[\w/]+\.py)::(?P<test>\w+)` \|$"
)


def rows():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [line for line in lines if line not in ("| fault | expected | test |", "|---|---|---|")]


def functions_in(file):
    """Names of the tests of a file; none if it does not exist."""
    if not file.exists():
        return set()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in ast.parse(file.read_text()).body if isinstance(one, functions)}


def test_every_fault_has_a_test_that_exists():
    missing = []
    for line in rows():
        found = ROW.fullmatch(line)
        if found is None or found["test"] not in functions_in(ROOT / found["file"]):
            missing.append(line)
    assert missing == []
    assert len(rows()) >= 25


def test_every_test_of_faults_on_the_pair_is_on_the_page():
    files = [
        *(ROOT / "tests/integration").glob("test_*_faults.py"),
        ROOT / "tests/integration/test_power_and_clocks.py",
    ]
    assert len(files) == 5
    listed = {found["test"] for line in rows() if (found := ROW.fullmatch(line))}
    tests = {name for file in files for name in functions_in(file) if name.startswith("test_")}
    assert tests <= listed


def test_a_name_that_does_not_exist_is_found():
    assert "test_nothing" not in functions_in(Path(__file__))
    assert "test_a_name_that_does_not_exist_is_found" in functions_in(Path(__file__))
    assert functions_in(ROOT / "tests/nowhere.py") == set()


def test_the_runbook_links_the_page():
    assert "(faults.md)" in (ROOT / "docs/runbook.md").read_text()


def test_real_parts_are_claimed_for_integration_tests_only():
    page = PAGE.read_text()
    claim = next(part for part in page.partition("\n## ")[0].split(". ") if "real parts" in part)
    elsewhere = [
        name for name in re.findall(r"`(tests/[^:`]+)", page) if not name.startswith("tests/integration")
    ]
    assert elsewhere
    assert claim.startswith("Tests in `tests/integration` inject it on real parts")
