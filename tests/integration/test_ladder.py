"""The ladder on two simulated Sparks: what does not start on the first is told with its cause, and the second serves."""

import os
import stat
import sys

import pytest
import yaml
from lab_fleet import UNCOMPILED, LabFleet, lab_of

pytestmark = pytest.mark.integration

TINY = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 4\n" + UNCOMPILED

BROKEN = """#!{python}
# Stands where a node's interpreter stands: it is that interpreter, but for the engine's own program.
import os, sys, time
if "vllm.entrypoints.openai.api_server" in sys.argv:
    {fault}
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
MEMORY = 'print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True); sys.exit(1)'
KNOWN = 'print("This kernel only supports sm120.", flush=True); sys.exit(1)'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks; what the first has for an engine is a file that a test writes."""
    directory = tmp_path_factory.mktemp("ladder")
    os.chmod(directory, 0o755)
    with lab_of(2, shares=(*LabFleet.shares(), directory)) as lab:
        fleet = LabFleet(lab, directory)
        inventory = yaml.safe_load((directory / "inventory.yaml").read_text())
        inventory["nodes"]["spark1"]["engines"] = {"vllm": {"python": str(directory / "python")}}
        inventory["nodes"]["spark2"]["engines"] = {"vllm": {"python": sys.executable}}
        fleet.write("inventory.yaml", yaml.safe_dump(inventory))
        fleet.bring()
        breaks(fleet, MEMORY)
        fleet.ok("up")
        yield fleet
        fleet.ok("down")
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


def breaks(fleet, fault):
    """From now on the first node's engine does this."""
    path = fleet.directory / "python"
    path.write_text(BROKEN.format(python=sys.executable, fault=fault))
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def test_out_of_memory_is_told_and_the_next_rung_serves(fleet):
    out = fleet.apply(TINY)
    assert "out of memory" in out
    assert "at rung 2 of its ladder" in out
    (group,) = fleet.deployment()["groups"]
    assert (group["node"], group["rung"], group["phase"]) == ("spark2", 1, "ready")
    assert "QSFP" in fleet.chat()


def test_what_did_not_start_is_not_tried_first_again(fleet):
    fleet.ok("delete", "--yes", "tiny")
    _, out, _ = fleet.run("plan", fleet.write("again.yaml", TINY), "--all")
    assert "did not start here: out of memory" in out
    choice = next(line for line in out.splitlines() if "choice" in line)
    assert "spark2" in choice


def test_another_setting_is_tried_again_and_a_known_issue_has_its_name(fleet):
    breaks(fleet, KNOWN)
    out = fleet.apply(TINY.replace("512", "256"))
    assert "fp8-kernel-only-sm120-trap" in out
    assert "at rung 2 of its ladder" in out
