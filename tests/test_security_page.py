"""docs/security.md and SECURITY.md agree with the code."""

import re
from pathlib import Path

import pytest

from sparkfleet.cli.verbs import VERBS
from sparkfleet.engines import guard
from sparkfleet.knowledge.engines.advisories import ADVISORIES
from sparkfleet.runtime.files.fleet_paths import FleetPaths

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
VULNERABILITIES = PAGE.partition("## Known vulnerabilities")[2].partition("\n## ")[0]


@pytest.mark.parametrize("advisory", ADVISORIES.content.advisories, ids=lambda one: one.id)
def test_every_advisory_that_plans_warn_of_is_on_the_page(advisory):
    assert advisory.id in VULNERABILITIES


ROWS = [line.strip("|").split("|") for line in VULNERABILITIES.splitlines() if line.startswith("| [")]
ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trtllm"}


@pytest.mark.parametrize("name", ["Ray", *ENGINES, "LiteLLM", "Ollama"])
def test_every_program_of_the_issue_has_a_row(name):
    assert any(name in advisory for advisory, *_ in ROWS)
    assert f"No advisory of {name}" not in VULNERABILITIES


@pytest.mark.parametrize("name", ENGINES)
def test_plans_warn_of_every_advisory_of_an_engine_on_the_page(name):
    known = {one.id: one.engine for one in ADVISORIES.content.advisories}
    listed = re.findall(r"CVE-\d+-\d+", " ".join(advisory for advisory, *_ in ROWS if name in advisory))
    assert set(listed) <= set(known)
    assert ENGINES[name] in {known[one] for one in listed}


def test_every_row_has_what_the_default_does():
    assert len(ROWS) > 8
    assert all(len(cells) == 3 and all(cell.strip() for cell in cells) for cells in ROWS)
    assert all("](https://" in cells[0] for cells in ROWS)


def test_the_way_to_report_names_a_verb_that_exists_and_the_page():
    text = (ROOT / "SECURITY.md").read_text()
    assert "`sparkfleet version`" in text
    assert "version" in VERBS
    assert "docs/security.md" in text
    assert "in private" in text


def test_every_secret_of_the_state_directory_is_private_and_named(tmp_path):
    """The rows of internal secrets cover the files that a fleet creates."""
    paths = FleetPaths(tmp_path / "home")
    paths.create()
    try:
        made = {path.name for path in paths.root.iterdir() if path.is_file()}
        assert made == {"ray.token", "api.token", "engine.secret"}
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths.root.iterdir() if path.is_file())
        assert paths.root.stat().st_mode & 0o777 == 0o700
    finally:
        paths.run.rmdir()
    for words in ("API token", "tokens of engines", "metrics token", "Ray's token", "engine secret"):
        assert words in PAGE
    assert guard.METRICS_PATH in PAGE
