"""The planner gives every fact that its rules read: a rule about another one could never fire."""

import pytest

from sparkfleet.knowledge.engines.images import IMAGES, images_of
from sparkfleet.knowledge.rules.rules import planning_rules
from sparkfleet.planner.rules.rule_facts import image_situation
from sparkfleet.planner.search import rule_effects

UNPUBLISHED = {"cutlass_version", "fastsafetensors_version"}
"""Libraries of which no image's version is published. `images.yaml` takes them, so these rules are doubts until then."""
TRAPPED = "6.17.0-1031-nvidia"


@pytest.fixture
def boxes(sparks):
    """Two Sparks with a driver and kernels that a rule is about; `kernels` may differ."""

    def made(*kernels):
        fleet = sparks(2)
        nodes = zip(fleet.nodes, kernels, strict=True)
        gpu = fleet.nodes[0].gpu.model_copy(update={"driver": "580.173.02"})
        return fleet.model_copy(
            update={"nodes": tuple(n.model_copy(update={"kernel": k, "gpu": gpu}) for n, k in nodes)}
        )

    return made


@pytest.fixture
def judged(monkeypatch):
    """The contexts that plans hold against rules."""
    found = []
    judge = rule_effects.judge

    def noted(situation):
        found.append(situation)
        return judge(situation)

    monkeypatch.setattr(rule_effects, "judge", noted)
    return found


def test_the_planner_gives_every_fact_that_its_rules_read(boxes, plan, ask, judged):
    for engine in ("vllm", "sglang"):
        plan(boxes(TRAPPED, TRAPPED), ask(engine=engine, needs=["tools"]))
    named = [image_situation(one.image) for one in IMAGES.content.images if len(images_of(one.image)) == 1]
    given = {name for situation in (*judged, *named) for name, value in situation if value is not None}
    if "image" in given:
        given |= {"image_name", "image_tag", "image_tag_name"}
    read = {fact for rule in planning_rules() for fact in rule.facts}
    assert read - given == UNPUBLISHED


@pytest.mark.parametrize(("second", "known"), [(TRAPPED, TRAPPED), ("6.17.0-1032-nvidia", None)])
def test_the_kernel_of_a_group_is_known_if_its_nodes_have_the_same_one(
    boxes, plan, ask, judged, second, known
):
    """`cuda-free-cap-102` reads it, and no plan knew it."""
    plan(boxes(TRAPPED, second), ask(engine="vllm", parallel={"tp": 2}))
    of_nodes = [situation for situation in judged if situation.nodes == 2 and situation.topology is not None]
    assert {situation.kernel_os for situation in of_nodes} == {known}
