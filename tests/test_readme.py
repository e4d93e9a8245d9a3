"""The plan that the README shows, as text and as a picture, is the one of today's knowledge."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet.cli.verbs import VERBS

ROOT = Path(__file__).parents[1]
COMMAND = (
    "$ sparkfleet plan -i docs/examples/inventory-two-sparks.yaml --assume dgx-spark"
    " deployments/qwen3.6-27b-auto.yaml\n"
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Output of the command on a machine that has nothing of the model and asks nobody."""
    done = subprocess.run(
        [sys.executable, "-m", *COMMAND.removeprefix("$ ").split()],
        cwd=ROOT,
        env={
            **os.environ,
            "HOME": str(tmp_path_factory.mktemp("home")),
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "102",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stdout.rstrip() + "\n"


def test_the_plan_of_the_readme_is_what_the_command_prints(plan):
    shown = (ROOT / "README.md").read_text().partition(COMMAND)[2].partition("```")[0]
    assert shown == plan


def test_the_table_of_the_readme_has_every_verb_once():
    table = (ROOT / "README.md").read_text().partition("| to | type |\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([a-z-]+)`", table)) == sorted(VERBS.keys() - {"help", "version"})


def test_the_picture_of_the_plan_has_the_same_lines(plan):
    """`tests/integration/pictures.py` draws it: run its `draw_plan`."""
    drawn = re.findall(
        r'<text class="plan-r\d+"[^>]*>([^<]*)</text>', (ROOT / "docs/img/plan.svg").read_text()
    )
    text = html.unescape("".join(drawn)).replace("\u00a0", " ")
    assert [line for line in plan.splitlines() if line not in text] == []
