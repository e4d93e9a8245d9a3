"""Plans that documents show, the README's also as a picture, are those of today's knowledge."""

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
def planned(tmp_path_factory):
    """planned(arguments) → what the command prints on a machine that has nothing of the model and asks nobody."""

    def planned(arguments):
        done = subprocess.run(
            [sys.executable, "-m", "sparkfleet", *arguments.split()],
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

    return planned


@pytest.fixture(scope="module")
def plan(planned):
    """Output of the README's command."""
    return planned(COMMAND.removeprefix("$ sparkfleet "))


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


def lost_node(text):
    """The line *node lost* of a plan or a page, without line breaks."""
    return " ".join(re.findall(r"node lost +((?:.*\n)(?: {10,}.*\n)*)", text)[0].split())


def test_a_lost_node_on_the_page_of_more_sparks_is_what_plans_have(planned, tmp_path):
    page = (ROOT / "docs/more-sparks.md").read_text()
    several = planned("plan openai/gpt-oss-120b --sparks 2")
    assert lost_node(page) == lost_node(several)
    both = re.search(r"speed +([\d.]+) tok/s", several)[1]
    alone = re.search(r"without spark2: .* ([\d.]+) tok/s", several)[1]
    assert f"{alone} tok/s of gpt-oss-120b on one Spark instead of {both} on two, predicted" in page

    one = tmp_path / "one.yaml"
    one.write_text("name: a\nmodel: Qwen/Qwen3.6-27B-FP8\nparallel: {tp: 1}\n")
    waiting = planned(f"plan -i docs/examples/inventory-two-sparks.yaml --assume dgx-spark {one}")
    assert "without spark1: it waits" in page
    kept = re.search(r"`standby: true` would keep \d+ GiB", lost_node(waiting))[0]
    assert kept in " ".join(page.split())
