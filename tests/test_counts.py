"""Counted figures in documents are those of today's code: one that no test holds is wrong after the next addition."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
from full_record import PIECES

from sparkfleet.checkpoints.arch.model_families import FAMILIES
from sparkfleet.doctor import registry
from sparkfleet.engines import tool_parsers
from sparkfleet.fabric import rails_helper
from sparkfleet.gateway import entry
from sparkfleet.knowledge.engines.advisories import ADVISORIES
from sparkfleet.lab.layout import MOST_NODES
from sparkfleet.lab.replay.bundle import MOST_ANSWERS, MOST_PARTS
from sparkfleet.planner.capacity.headroom import MOST_REQUESTS
from sparkfleet.telemetry.alerts import EVERY_ALERT
from sparkfleet.telemetry.dashboards.boards import DASHBOARDS

ROOT = Path(__file__).parents[1]
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER = rf"\b(\d[\d,]*|{'|'.join(WORDS)})\b"


def source(path: str, pattern: str) -> int:
    """A number that a file of the repository has once."""
    (found,) = re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)
    return int(found)


CHECKS = len({*(check.id for check in registry.CHECKS), registry.SILENT, registry.CHANGED})
MEASUREMENTS = source("sparkfleet/knowledge/published/factors.yaml", r"\A# .*? (\d+) measurements")
COUNTS = (
    ("README.md", f"# {NUMBER} checks:", CHECKS),
    ("CHANGELOG.md", f"`doctor` has {NUMBER} checks", CHECKS),
    ("CHANGELOG.md", rf"{NUMBER} alerts with a\b", len(EVERY_ALERT)),
    ("docs/observing.md", f"All {NUMBER} alerts have fired", len(EVERY_ALERT)),
    ("CHANGELOG.md", f"{NUMBER} Grafana dashboards", len(DASHBOARDS)),
    ("CHANGELOG.md", f"{NUMBER} model types", len(FAMILIES)),
    ("CHANGELOG.md", f"parsers of {NUMBER} families", len(tool_parsers.FAMILIES)),
    ("CHANGELOG.md", f"{NUMBER} published advisories", len(ADVISORIES.content.advisories)),
    ("CHANGELOG.md", f"fitted to {NUMBER} published measurements", MEASUREMENTS),
    ("docs/planner.md", rf"fitted to {NUMBER}\spublished rows", MEASUREMENTS),
    ("docs/choosing.md", f"positions and {NUMBER} requests", MOST_REQUESTS),
    ("docs/fabric.md", f"At most {NUMBER} fit", rails_helper.MOST_PEERS),
    ("docs/gateway.md", f"An entry holds {NUMBER} connections", entry.MOST),
    ("docs/lab.md", f"{NUMBER} parts", MOST_PARTS),
    ("docs/lab.md", f"{NUMBER} nodes or", MOST_NODES),
    ("docs/lab.md", f"{NUMBER} commands per node", MOST_ANSWERS),
    ("docs/development.md", f"has {NUMBER} pieces", len(PIECES)),
    ("docs/structures.md", f"at most {NUMBER} modules", source("scripts/house.py", r"^MOST_MODULES = (\d+)")),
)  # fmt: skip
"""Document, the figure in its sentence, and what it counts."""

COUNTED = re.compile(
    rf"{NUMBER} (?:\w+ )?(?:checks|alerts|famil(?:y|ies)|dashboards|model types|advisories|rules|verbs|metrics|"
    r"speculators|published (?:rows|measurements|setups|verdicts))\b"
)
"""Figures that have to be counted by a line above, or elsewhere."""
ELSEWHERE = {
    "docs/planner.md": (
        "74 published verdicts",
        "74 published setups",
    ),  # tests/perf/memory/test_demand_published.py
    "docs/rules.md": ("rules.yaml`: ",),  # generated
}


def number(text: str) -> int:
    """A number in digits or in words."""
    return WORDS.index(text) if text in WORDS else int(text.replace(",", ""))


@pytest.mark.parametrize(("document", "pattern", "counted"), COUNTS)
def test_a_figure_is_what_it_counts(document: str, pattern: str, counted: int) -> None:
    found = re.findall(pattern, (ROOT / document).read_text())
    assert found, f"{document} has no such sentence any more"
    assert [number(one) for one in found] == [counted] * len(found)


def test_the_rows_by_nodes_are_those_of_the_measurements() -> None:
    with (ROOT / "sparkfleet/knowledge/measurements/benchmarks.csv").open(encoding="utf-8") as file:
        rows = Counter(row["nodes"] for row in csv.DictReader(file))
    assert set(rows) == {"1", "2", "3", "4"}, "docs/more-sparks.md: nobody has published eight"
    page = (ROOT / "docs/more-sparks.md").read_text()
    assert (
        f"({rows['1']:,} rows of one node, {rows['2']} of two, {rows['3']} of three, {rows['4']} of four)"
        in page
    )


def test_the_errors_of_predictions_in_the_readme_are_those_of_the_table() -> None:
    page = (ROOT / "docs/planner.md").read_text()
    (row,) = re.findall(r"^\| leave one source out \| ([\d.]+) / ([\d.]+) \|", page, re.MULTILINE)
    (aim,) = re.findall(r"^\| \*aim, sources left out\* \| \*(\d+) / (\d+)\*", page, re.MULTILINE)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"off by {row[0]} % in the median without speculation and {row[1]} % with it" in readme
    assert f"(the aim: {aim[0]} and {aim[1]})" in readme


def unheld(document: str, text: str) -> list[str]:
    """Counted figures of a document that no line of this file holds."""
    held = [re.compile(pattern) for path, pattern, _ in COUNTS if path == document]
    known = ELSEWHERE.get(document, ())
    return [
        line
        for line in text.splitlines()
        for one in COUNTED.finditer(line)
        if number(one[1]) > 10  # a small one is of its sentence
        and not any(pattern.search(line) for pattern in held)
        and not any(phrase in line for phrase in known)
    ]


def test_every_counted_figure_is_held() -> None:
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    history = ("decisions.md", "field-reports.md")
    found = {
        str(path.relative_to(ROOT)): lines
        for path in documents
        if path.name not in history and (lines := unheld(str(path.relative_to(ROOT)), path.read_text()))
    }
    assert found == {}
    assert unheld("docs/doctor.md", "It has 62 checks.") == ["It has 62 checks."]
