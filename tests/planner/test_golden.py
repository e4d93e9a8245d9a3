"""Output of `sparkfleet plan` with masked numbers: they change whenever factors are fitted again, the words should not.

`SPARKFLEET_GOLDEN=write pytest tests/planner/test_golden.py` writes the files; read them before you commit them.
"""

import os
import re
from pathlib import Path

import pytest

from sparkfleet.planner.report.diff import compare
from sparkfleet.planner.report.explain.change import explain_change
from sparkfleet.planner.report.explain.fleet import explain_fleet
from sparkfleet.planner.report.explain.plan import explain_plan, explain_refusal
from sparkfleet.specs.load import load_deployment

GOLDEN = Path(__file__).parents[0] / "golden"
CASES = [
    ("qwen235b-tp2", 2),
    ("qwen3.6-27b-fp8-nextn", 2),
    ("qwen3.6-27b-both", 2),
    ("orpheus-tts", 1),
    ("qwen3-embedding", 1),
    ("nemotron-3-super-open", 1),
    ("qwen3.6-35b-a3b-dflash-k6", 1),
    ("gpt-oss-120b-kv-disk", 1),
]


def printed(spec, found, fleet):
    plan = found.of(spec.name)
    lines = [explain_fleet(spec, plan, fleet.nodes, fleet.name, links=fleet.links, assumed=fleet.assumed)]
    if plan is None:
        return lines + explain_refusal(found.refused[0])
    # Slower candidates differ by numbers alone, and are in their order.
    rejected = tuple(one for one in plan.rejected if one.why == "rule")
    shown = plan.model_copy(update={"rejected": rejected})
    return lines + explain_plan(shown) + explain_change(compare(spec, plan, None), plan)


def masked(lines):
    # Line breaks depend on the numbers.
    text = re.sub(r"\n {16,}(?=\S)", " ", "\n".join(lines))
    text = re.sub(r"(?<![\w.-])\d+(\.\d+)?(?![\w.-]*[a-zA-Z])", "#", text)
    text = re.sub(r"\((± # %|# to #)\)", "(±)", text)
    text = re.sub(r"calibrated on # measurements|modelled from physics", "…", text)
    return re.sub(r" {3,}(?=\S)", "   ", text).rstrip() + "\n"


@pytest.mark.parametrize(("name", "nodes"), CASES, ids=[name for name, _ in CASES])
def test_the_words_of_a_plan(sparks, plan, root, name, nodes):
    spec, fleet = load_deployment(root / "deployments" / f"{name}.yaml"), sparks(nodes)
    text = masked(printed(spec, plan(fleet, spec), fleet))
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("SPARKFLEET_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), (
        "if the change has a reason: SPARKFLEET_GOLDEN=write pytest tests/planner/test_golden.py"
    )
