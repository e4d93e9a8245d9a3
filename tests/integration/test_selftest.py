"""`sparkfleet selftest` on two simulated Sparks: every step has its verdict, and a fault of a node is one."""

import subprocess

import pytest
from lab_fleet import SPARKFLEET

pytestmark = [pytest.mark.integration, pytest.mark.full]


def verdict(out, name):
    """Of the step with this name."""
    (line,) = (line for line in out.splitlines() if line[8:].startswith(f"{name}: "))
    return line[:8].strip()


def test_all_steps_on_a_pair_and_the_fleet_is_as_before(pair):
    pair.serve(pair.spec("nodes: [spark1]\n"))
    before = pair.deployment()["groups"][0]["ranks"][0]["pid"]
    code, out, err = pair.run("selftest", "--yes", timeout=1000)  # four starts of real engines
    for name in ("spark1: facts", "spark2: facts", "spark1–spark2: speed"):
        assert verdict(out, name) == "ok", out + err
    for name in ("spark1: an engine", "spark2: an engine", "spark1+spark2: one engine of two ranks"):
        assert verdict(out, name) == "ok", out + err
    assert verdict(out, "spark1+spark2: all-reduce") == "ok", out + err
    assert "gloo on CPUs: " in out
    assert verdict(out, "spark1+spark2: rails of an answer") == "skipped", out + err
    assert verdict(out, "page cache") in ("ok", "fault")
    assert [one["name"] for one in pair.deployments()] == ["tiny"]
    assert pair.deployment()["groups"][0]["ranks"][0]["pid"] == before
    assert code == ("\nfault " in out)


def test_without_engines_a_fact_that_a_node_does_not_give_is_a_fault(pair):
    pair.lab.set("spark2", gpu="no-driver")
    code, out, _ = pair.run("selftest", "--no-engines", "spark2")
    pair.lab.heal("spark2")
    assert code == 1
    assert verdict(out, "spark2: facts") == "fault"
    assert verdict(out, "engines") == "skipped"


def test_a_node_that_its_owner_reboots_comes_back_with_its_engine(pair):
    """Nobody may reboot a simulated Spark from outside: the command line prints what to type, and waits."""
    pair.serve(pair.spec("nodes: [spark2]\n"))
    command = [SPARKFLEET, "selftest", "--no-engines", "--reboot", "spark2", "--yes", "spark2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=pair.directory, **pipes) as running:
        asked = next(line for line in running.stderr if line.startswith("On spark2, type: "))
        assert "sudo systemctl reboot" in asked
        assert running.poll() is None
        pair.lab.reboot("spark2")
        out, err = running.communicate(timeout=300)
    assert verdict(out, "spark2: reboot") == "ok", out + err
    assert "all that it served was ready after" in out
    pair.until(pair.is_ready)
