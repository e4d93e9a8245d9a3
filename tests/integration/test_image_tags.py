"""A deployment whose image is a tag, as all examples' are: real containers on two simulated Sparks, as one group.

The tag is of one node only; what it stands for is settled there, once, and moves when it is asked to.
"""

import json

import box_image
import pytest
from lab_fleet import UNCOMPILED, LabFleet, lab_of

pytestmark = [pytest.mark.integration, pytest.mark.full]

TAG = f"{box_image.NAME}:1"
DEPLOYMENT = (
    f"name: tiny\nmodel: builtin:tiny-moe\nengine: vllm\nruntime: container\nimage: {TAG}\n"
    f"context: 512\nconcurrency: 4\nparallel: {{tp: 2, ep: 2}}\n{UNCOMPILED}"
)
NODES = ("spark1", "spark2")
SLOW_S = 600


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks, and the output of the deployment's first `apply`."""
    with lab_of(2) as lab:
        fleet = LabFleet(lab, tmp_path_factory.mktemp("tags"))
        fleet.bring("tiny-moe")
        fleet.image = box_image.prepared(lab)
        fleet.said = applied(fleet)
        yield fleet
        fleet.ok("down")
        assert {name: fleet.containers(name) for name in NODES} == {"spark1": [], "spark2": []}


def applied(fleet, *options):
    return fleet.apply(DEPLOYMENT, options=options, timeout=SLOW_S)


def runs(fleet, node):
    """The name of the image that a node's only container runs, and what that image is."""
    (only,) = fleet.until(lambda: len(found := fleet.containers(node)) == 1 and found, timeout=60)
    told = json.loads(fleet.lab.exec(node, ["podman", "container", "inspect", only]).stdout)[0]
    return told["ImageName"], told["Image"]


def wanted(fleet):
    """The images that the plan carries."""
    (group,) = fleet.deployment()["plan"]["groups"]
    return {rung["candidate"]["image"] for rung in group["ladder"]}


def digest(image):
    return image.rpartition(":")[2]


def test_both_nodes_run_the_image_that_the_tag_stood_for(fleet):
    assert wanted(fleet) == {f"{TAG}@sha256:{digest(fleet.image)}"}
    assert f"{TAG} is sha256:{digest(fleet.image)[:12]}…, as on spark1" in fleet.said
    first, second = (runs(fleet, node) for node in NODES)
    assert first == second
    assert first[0] == f"localhost/sparkfleet-staged:{digest(fleet.image)}"
    assert "QSFP" in fleet.chat()


def test_to_apply_it_again_changes_nothing(fleet):
    before = [fleet.containers(node) for node in NODES]
    assert "No change" in applied(fleet)
    assert [fleet.containers(node) for node in NODES] == before


def test_a_tag_that_moves_replaces_nothing_until_it_is_asked_to(fleet):
    moved = box_image.lay(fleet.lab, "spark1", box_image.NAME, own={"etc/moved": "yes"})
    assert digest(moved) != digest(fleet.image)
    assert "No change" in applied(fleet)
    said = " ".join(applied(fleet, "--pull").split())  # lines wrap
    assert f"planned image: {TAG}@sha256:{digest(fleet.image)} → {TAG}" in said
    assert wanted(fleet) == {f"{TAG}@sha256:{digest(moved)}"}
    first, second = (runs(fleet, node) for node in NODES)
    assert first == second
    assert first[0] == f"localhost/sparkfleet-staged:{digest(moved)}"
    assert "QSFP" in fleet.chat()


def test_asked_to_where_it_has_not_moved_nothing_is_replaced(fleet):
    fleet.until(
        lambda: [len(fleet.containers(node)) for node in NODES] == [1, 1], timeout=60
    )  # nothing drains
    before = [fleet.containers(node) for node in NODES]
    applied(fleet, "--pull")
    assert [fleet.containers(node) for node in NODES] == before
