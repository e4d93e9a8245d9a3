"""`sparkfleet selftest` on two simulated Sparks: every step has its verdict, and a fault of a node is one."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.full]


def verdict(out, name):
    """Of the step with this name."""
    (line,) = (line for line in out.splitlines() if line[8:].startswith(f"{name}: "))
    return line[:8].strip()


def test_all_steps_on_a_pair_and_the_fleet_is_as_before(pair):
    pair.serve(pair.spec("nodes: [spark1]\n"))
    before = pair.deployment()["groups"][0]["ranks"][0]["pid"]
    code, out, err = pair.run("selftest", "--yes")
    for name in ("spark1: facts", "spark2: facts", "spark1–spark2: speed"):
        assert verdict(out, name) == "ok", out + err
    for name in ("spark1: an engine", "spark2: an engine", "spark1+spark2: one engine of two ranks"):
        assert verdict(out, name) == "ok", out + err
    assert verdict(out, "page cache") in ("ok", "fault")
    assert [one["name"] for one in pair.deployments()] == ["tiny"]
    assert pair.deployment()["groups"][0]["ranks"][0]["pid"] == before
    assert code == ("\nfault " in out)


def test_without_engines_a_fact_that_a_node_does_not_give_is_a_fault(pair):
    pair.lab.set("spark2", gpu="no-driver")
    code, out, _ = pair.run("selftest", "--no-engines", "spark2")
    assert code == 1
    assert verdict(out, "spark2: facts") == "fault"
    assert verdict(out, "engines") == "skipped"
