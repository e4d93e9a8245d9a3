"""Ranks in rootless podman containers on simulated Sparks: real vLLM on the CPU, from an image that one of them has.

One model of experts: in one container, without speculation and with it; in two as one group, the experts split over both.
Each test applies what it needs, which changes nothing if it is served already; in this order engines start four times.
"""

import json

import box_image
import pytest
from lab_fleet import LabFleet, lab_of

pytestmark = [pytest.mark.integration, pytest.mark.full]

DEPLOYMENT = (
    "name: tiny\nmodel: builtin:tiny-moe\nengine: vllm\nruntime: container\nimage: {image}\n"
    "context: 512\nconcurrency: 4\nenv: {{TEST_SECRET: kept-from-arguments}}\n{more}"
)
ALONE = "nodes: [spark2]\n"
DRAFTS = ALONE + "speculation: {method: ngram, tokens: 3}\n"
PAIR = "parallel: {tp: 2, ep: 2}\n"
QUESTIONS = (
    "What is a rail?",
    "What is a group?",
    "I am a tiny model and only know about Sparks and sparkfleet. Who won the cup?",
)
"""The last is answered in words that it holds itself: that is what `ngram` drafts from."""
SLOW_S = 600
"""For an engine that starts: 20 s alone, minutes where others build models beside it."""


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    """Two Sparks, and the image on the first of them."""
    with lab_of(2) as lab:
        fleet = LabFleet(lab, tmp_path_factory.mktemp("containers"))
        fleet.bring("tiny-moe")
        image = box_image.prepared(lab)
        fleet.ok("up")
        yield fleet, image
        fleet.ok("down")
        assert {node.name: fleet.containers(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


@pytest.fixture
def alone(boxes):
    """The fleet, with `tiny` served from one container."""
    serve(*boxes, ALONE)
    return boxes[0]


@pytest.fixture(scope="module")
def said(boxes):
    """The answers of one container, without speculation."""
    serve(*boxes, ALONE)
    return says(boxes[0])


@pytest.fixture
def pair(boxes, said):
    """The fleet with `tiny` served by two containers as one, and the answers of one alone."""
    serve(*boxes, PAIR)
    return boxes[0], said


def serve(fleet, image, more):
    """Apply it, and wait until it is ready."""
    fleet.apply(DEPLOYMENT.format(image=image, more=more), timeout=SLOW_S)


def inspected(fleet, node):
    (only,) = fleet.containers(node)
    return json.loads(fleet.lab.exec(node, ["podman", "container", "inspect", only]).stdout)[0]


def rank(fleet, number=0):
    return fleet.group()["ranks"][number]


def says(fleet):
    return [fleet.chat(question=question) for question in QUESTIONS]


def parent(fleet, node, pid):
    return fleet.lab.exec(node, ["ps", "-o", "ppid=", "-p", str(pid)]).stdout.strip()


def test_a_container_on_the_node_that_was_named_answers(alone):
    """The image was on the other node: it was brought before anything was started."""
    assert "QSFP" in alone.chat()
    assert alone.containers("spark1") == []
    box = inspected(alone, "spark2")
    assert box["State"]["Status"] == "running"
    assert "vllm" in " ".join(box["Args"])


def test_its_labels_say_whose_it_is(alone):
    labels = inspected(alone, "spark2")["Config"]["Labels"]
    assert labels.pop("sparkfleet.spec")
    assert labels.pop("sparkfleet.fleet")
    assert {name: labels[f"sparkfleet.{name}"] for name in ("deployment", "generation", "group", "rank")} == {
        "deployment": "tiny",
        "generation": str(alone.deployment()["generation"]),
        "group": "0",
        "rank": "0",
    }


def test_secrets_are_in_no_argument(alone):
    """Neither the engine's token nor what the deployment set; both are in its environment."""
    box = inspected(alone, "spark2")
    inside = dict(word.partition("=")[::2] for word in box["Config"]["Env"])
    secrets = [inside["VLLM_API_KEY"], inside["TEST_SECRET"]]
    assert secrets[1] == "kept-from-arguments"
    assert len(secrets[0]) > 20
    told = json.dumps([box["Path"], box["Args"], box["Config"]["CreateCommand"], box["Config"]["Labels"]])
    listed = alone.lab.exec("spark2", ["ps", "-eo", "args"]).stdout
    assert not [secret for secret in secrets for text in (told, listed) if secret in text]


def test_a_killed_supervisor_leaves_no_container_and_the_group_comes_back(alone):
    pid, (first,) = rank(alone)["pid"], alone.containers("spark2")
    alone.lab.exec("spark2", ["kill", "-9", parent(alone, "spark2", pid)])
    alone.until(lambda: first not in alone.containers("spark2"), timeout=60)
    alone.until(lambda: (now := alone.ready_group()) and now["ranks"][0]["pid"] != pid, timeout=SLOW_S)
    assert len(alone.containers("spark2")) == 1
    assert "QSFP" in alone.chat()


def test_drafts_change_no_answer_and_are_counted(boxes, said):
    fleet, _ = boxes
    serve(*boxes, DRAFTS)
    assert says(fleet) == said
    accepted = fleet.until(lambda: fleet.group()["accepted"], timeout=60)
    assert accepted <= fleet.group()["drafted"]


def test_two_containers_on_two_nodes_are_one_group(pair):
    """Two ranks with half of the experts each answer as one with all of them, and exchange their data over the rails."""
    fleet, alone = pair
    assert [rank(fleet, number)["node"] for number in (0, 1)] == ["spark1", "spark2"]
    fleet.until(lambda: [len(fleet.containers(name)) for name in ("spark1", "spark2")] == [1, 1], timeout=60)
    before = fleet.traffic("spark2")
    assert says(fleet) == alone
    assert fleet.group()["measured"]["own_agreement"] > 0.9
    after = fleet.traffic("spark2")
    moved = {name: after[name] - before[name] for name in after}
    assert max(moved["enp1s0f1np1"], moved["enP2p1s0f1np1"]) > 50_000
    assert moved["enP7s7"] < 20_000


def test_a_container_that_is_killed_ends_the_group_and_it_comes_back_whole(pair):
    fleet, alone = pair
    old = fleet.containers("spark1") + fleet.containers("spark2")
    fleet.lab.exec("spark2", ["podman", "kill", *fleet.containers("spark2")])
    fleet.until(lambda: not fleet.is_ready(), timeout=60)
    fleet.until(fleet.is_ready, timeout=SLOW_S)
    new = fleet.containers("spark1") + fleet.containers("spark2")
    assert len(new) == 2
    assert not set(old) & set(new)
    assert says(fleet) == alone


def test_the_head_is_rebooted_and_the_group_comes_back_whole(pair):
    """The rank on the other node has lost its peer: no rank survives alone, and nothing of the old ones is left."""
    fleet, alone = pair
    old = fleet.containers("spark1") + fleet.containers("spark2")
    fleet.lab.reboot("spark1")
    fleet.until(fleet.is_ready, timeout=SLOW_S)
    for node in ("spark1", "spark2"):
        (only,) = fleet.containers(node)
        assert only not in old
        listed = fleet.processes(node)
        kept = [sum(word in line for line in listed) for word in ("conmon", "runtime.supervisor")]
        assert kept == [1, 1], listed
    assert says(fleet) == alone


def test_delete_leaves_nothing(pair):
    fleet, _ = pair
    fleet.ok("delete", "--yes", "tiny")
    for node in ("spark1", "spark2"):
        fleet.until(lambda node=node: fleet.containers(node) == [], timeout=60)
        words = ("vllm", "conmon", "podman", "supervisor")
        left = [line for line in fleet.processes(node) if any(word in line.lower() for word in words)]
        assert left == []
