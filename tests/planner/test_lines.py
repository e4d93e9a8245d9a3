"""Each line of every plan of the sample deployments: as wide as a terminal, in words, and no value of Python."""

import importlib.util
import re

import pytest

from sparkfleet.planner.report.diff import compare
from sparkfleet.planner.report.explain.change import explain_change
from sparkfleet.planner.report.explain.fleet import explain_fleet
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal
from sparkfleet.specs.load import load_deployment

COLUMNS = 100
PYTHON = re.compile(
    r"\b(None|True|False|nan|inf)\b|[\[({]'|\w+\(\w+=|<[\w.]+ object|Decimal|PosixPath|\\[nu]"
)


@pytest.fixture
def house(root):
    """`scripts/house.py`, which holds the words that no message may have."""
    spec = importlib.util.spec_from_file_location("house", root / "scripts" / "house.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_plan_of_every_sample_is_in_words_and_as_wide_as_a_terminal(sparks, plan, root, house, nodes):
    files = sorted((root / "deployments").glob("*.yaml"))
    assert len(files) > 20
    fleet = sparks(nodes)
    wrong = []
    for file in files:
        spec = load_deployment(file)
        found = plan(fleet, spec)
        chosen = found.of(spec.name)
        lines = [
            explain_fleet(spec, chosen, fleet.nodes, fleet.name, links=fleet.links, assumed=fleet.assumed)
        ]
        if chosen is None:
            lines += explain_refusal(found.refused[0])
        else:
            lines += explain_plan(chosen) + explain_change(compare(spec, chosen, None), chosen)
        for line in "\n".join(lines).splitlines():
            prose = re.sub(r"`[^`]*`", "", line)
            if len(line) > COLUMNS or PYTHON.search(line) or house.RIDDLES.search(prose):
                wrong.append(f"{file.stem}: {line}")
    assert wrong == []
