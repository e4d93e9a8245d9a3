"""Planning from a machine that has no weights: they lie on a simulated Spark, and are read there over real SSH."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from lab_fleet import SPARKFLEET, lab_of

from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.tiny_models import cache

pytestmark = pytest.mark.integration

NAME = "tiny"
DIRECTORY = "/home/nvidia/models/tiny"
HUB = "/home/nvidia/.cache/huggingface/hub/models--Org--Tiny"
COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"


@pytest.fixture(scope="module")
def weights():
    """A real checkpoint of this machine's, where nobody looks for it."""
    subprocess.run([sys.executable, "-m", "sparkfleet.tiny_models", "build", NAME], check=True, timeout=900)
    return cache.path(NAME)


@pytest.fixture(scope="module")
def lab(weights):
    """spark2 has it as a directory and in its Hub cache, spark1 and this machine have nothing."""
    archive = subprocess.run(
        ["tar", "-C", str(weights), "-cf", "-", "."], capture_output=True, check=True
    ).stdout
    with lab_of(2, shares=()) as lab:
        for place in (DIRECTORY, f"{HUB}/snapshots/{COMMIT}"):
            lab.exec("spark2", ["mkdir", "-p", place])
            subprocess.run(lab.argv("spark2", ["tar", "-C", place, "-xf", "-"]), input=archive, check=True)
        lab.exec("spark2", ["mkdir", "-p", f"{HUB}/refs"])
        lab.exec("spark2", ["tee", f"{HUB}/refs/main"], stdin=COMMIT)
        yield lab


@pytest.fixture
def run(lab, tmp_path):
    """Run a verb on this machine: (exit code, stdout, stderr)."""
    (tmp_path / "inventory.yaml").write_text(lab.inventory())

    def run(*argv):
        done = subprocess.run(
            [SPARKFLEET, *argv],
            cwd=tmp_path,
            env={
                **os.environ,
                "COLUMNS": "200",
                "HF_HUB_CACHE": str(tmp_path / "hub"),
                "SPARKFLEET_HOME": str(tmp_path / "state"),
            },
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    ("model", "path", "revision"),
    [(DIRECTORY, DIRECTORY, None), ("Org/Tiny", f"{HUB}/snapshots/{COMMIT}", COMMIT)],
    ids=["directory", "hub"],
)
def test_inspect_says_what_it_says_where_it_lies(run, weights, model, path, revision):
    code, out, err = run("inspect", model, "--json")
    assert code == 0, err
    expected = read_checkpoint(weights, id=model).model_dump(mode="json")
    assert expected["weights_known"]
    assert json.loads(out)["checkpoint"] == {**expected, "path": path, "revision": revision}


def test_a_plan_is_made_of_weights_on_a_node(run, tmp_path):
    (tmp_path / "tiny.yaml").write_text(f"name: tiny\nmodel: {DIRECTORY}\nengine: vllm\nspeculation: none\n")
    code, out, err = run("plan", "tiny.yaml")
    assert code == 2, out + err
    assert re.search(r"\+ start +tiny", out)
    assert "config alone" not in out


def test_what_is_nowhere_says_where_was_looked(run, lab):
    code, _, err = run("inspect", "/home/nvidia/models/other")
    assert code == 1
    assert "/home/nvidia/models/other: is not a directory on this machine, spark1 or spark2." in err


def test_what_is_damaged_there_is_told_with_its_node(run, lab):
    place = "/home/nvidia/models/half"
    lab.exec("spark2", ["cp", "-r", DIRECTORY, place])
    lab.exec("spark2", ["truncate", "-s", "1000", f"{place}/model.safetensors"])
    code, _, err = run("inspect", place)
    assert code == 1
    assert f"spark2:{place}/model.safetensors: declares a header of" in err


@pytest.mark.full
def test_a_node_that_is_off_does_not_hide_the_other(run, lab):
    lab.kill("spark1")
    try:
        code, out, err = run("inspect", DIRECTORY)
    finally:
        lab.boot("spark1")
    assert code == 0, err
    assert "the weight files" in out
