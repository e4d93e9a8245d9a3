"""The ladder on two simulated Sparks: the first rung does not start, its cause is reported, and the second serves."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.any_engine]

MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
KNOWN = "This kernel only supports sm120."


@pytest.fixture
def fleet(pair):
    """Two Sparks that serve nothing, and on the first of which no vLLM comes up for want of memory."""
    for name in [deployment["name"] for deployment in pair.deployments()]:
        pair.ok("delete", "--yes", name)
    pair.breaks("spark1", MEMORY)
    yield pair
    pair.breaks("spark1", "")


def test_out_of_memory_is_told_and_the_next_rung_serves(fleet):
    out = fleet.apply(fleet.anew(fleet.spec()))
    assert "out of memory" in out
    assert "at rung 2 of its ladder" in out
    (group,) = fleet.deployment()["groups"]
    assert (group["node"], group["rung"], group["phase"]) == ("spark2", 1, "ready")
    assert fleet.is_sound(fleet.chat())


@pytest.mark.full
def test_what_did_not_start_is_not_tried_first_again(fleet):
    spec = fleet.anew(fleet.spec())
    fleet.apply(spec)
    fleet.ok("delete", "--yes", "tiny")
    _, out, _ = fleet.run("plan", fleet.write("again.yaml", spec), "--all")
    assert "did not start here: out of memory" in out
    choice = next(line for line in out.splitlines() if "choice" in line)
    assert "spark2" in choice


@pytest.mark.full
def test_another_setting_is_tried_again_and_a_known_issue_has_its_name(fleet):
    spec = fleet.anew(fleet.spec())
    fleet.apply(spec)
    fleet.breaks("spark1", "")
    fleet.breaks("spark2", KNOWN)  # it runs there, and the plan keeps it there
    out = fleet.apply(spec.replace("512", "256"))
    assert "fp8-kernel-only-sm120-trap" in out
    assert "at rung 2 of its ladder" in out
    fleet.breaks("spark2", "")
