"""Decisions on deployments beside what runs."""

from pathlib import Path

import pytest
import statuses

from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.planning.fleet_decision import decide
from sparkfleet.hostfacts.node import Gpu, InstalledEngine, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.rules.failure_memory import RememberedFailure, fingerprint
from sparkfleet.planner.types.image_refs import digests_of, with_digests
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import load_deployment

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"


class TestDecide:
    """Only what can be launched is planned."""

    def node(self, **fields):
        home = {"vllm": InstalledEngine(python="/venv/bin/python", version="0.32.0+cpu")}
        base = {
            "name": "this",
            "memory": UnifiedMemory(total=130_600_000_000, available=115_000_000_000),
            "processors": Processors(count=2, machine="x86_64"),
            "gpu": None,
            "engines": home,
        }
        return NodeFacts(**{**base, **fields})

    def test_a_built_in_model_starts(self):
        spec = load_deployment(DEPLOYMENTS / "tiny-local.yaml")
        (planned,) = decide([spec], Fleet(nodes=(self.node(),)), None, {}).planned
        assert planned.change.verb == "start"

    @pytest.mark.parametrize(
        ("state", "verb"), [("ready", "keep"), ("starting", "keep"), ("failed", "start")]
    )
    def test_what_is_given_up_is_asked_for_once_more(self, state, verb):
        """The same file again changes nothing, except of what has failed, as every message about that advises."""
        spec, fleet = load_deployment(DEPLOYMENTS / "tiny-local.yaml"), Fleet(nodes=(self.node(),))
        (planned,) = decide([spec], fleet, None, {}).planned
        known = DeploymentStatus(
            name=spec.name, generation=1, state=state, detail="", who="me", since=0.0, plan=planned.plan,
            spec=spec.model_dump_json(), groups=(),
        )  # fmt: skip
        status = statuses.fleet(known)
        (again,) = decide([spec], fleet, status, {}).planned
        assert again.change.verb == verb

    def test_what_is_remembered_not_to_start_is_tried_on_request(self):
        """And what runs at a lower rung begins at the top of its ladder once more."""
        spec = Deployment.model_validate({"name": "m", "model": "Qwen/Qwen3.6-27B-FP8"})
        known = {spec.model: known_checkpoint(spec.model)}
        gpu = Gpu(name="NVIDIA GB10", driver="580.142")
        memory = UnifiedMemory(total=130_600_000_000, available=118_000_000_000)
        processors = Processors(count=20, machine="aarch64")
        node = NodeFacts(name="spark1", memory=memory, processors=processors, gpu=gpu, engines={})
        fleet = Fleet(nodes=(node,), assumed=("spark1",))
        (fresh,) = decide([spec], fleet, None, known).planned
        top, *lower = fresh.plan.groups[0].ladder
        assert fresh.plan.drivers == (("spark1", "580.142"),)
        mark = fingerprint(top.candidate, fresh.plan.drivers)
        status = statuses.fleet(failures=(RememberedFailure(fingerprint=mark, words="known issue"),))
        (barred,) = decide([spec], fleet, status, known).planned
        assert barred.plan.groups[0].ladder == tuple(lower)
        assert "`sparkfleet apply --retry`" in barred.plan.rejected[0].reason
        (wished,) = decide([spec], fleet, status, known, retry=True).planned
        assert wished.plan.groups[0].choice == top
        runs = DeploymentStatus(
            name="m", generation=1, state="ready", detail="", who="me", since=0.0, plan=fresh.plan,
            spec=spec.model_dump_json(), groups=(), passed=(("known issue",),),
        )  # fmt: skip
        status = status.model_copy(update={"deployments": (runs,)})
        (kept,) = decide([spec], fleet, status, known).planned
        assert kept.change.verb == "keep"
        (again,) = decide([spec], fleet, status, known, retry=True).planned
        assert (again.change.verb, again.change.fields) == ("change", ("rung: 2 → 1",))
        at_the_top = status.model_copy(update={"deployments": (runs.model_copy(update={"passed": ((),)}),)})
        assert decide([spec], fleet, at_the_top, known, retry=True).planned[0].change.verb == "keep"

    def test_a_tag_that_is_deployed_keeps_its_digest_until_it_is_to_be_renewed(self):
        """The tag may have another digest by now."""
        tag, pinned = "localhost/tts:latest", f"localhost/tts:latest@sha256:{'a' * 64}"
        spec = Deployment.model_validate(
            {
                "name": "tts",
                "engine": "custom",
                "model": "org/tts",
                "image": tag,
                "port": 8880,
                "memory": "24 GiB",
            }
        )
        fleet = Fleet(nodes=(self.node(),))
        (first,) = decide([spec], fleet, None, {}).planned
        assert digests_of(first.plan) == {}
        known = DeploymentStatus(
            name=spec.name, generation=1, state="ready", detail="", who="me", since=0.0,
            plan=with_digests(first.plan, {tag: pinned}), spec=spec.model_dump_json(), groups=(),
        )  # fmt: skip
        status = statuses.fleet(known)
        (again,) = decide([spec], fleet, status, {}).planned
        assert again.change.verb == "keep"
        longer = spec.model_copy(update={"context": 2048})
        (changed,) = decide([longer], fleet, status, {}).planned
        assert changed.change.verb == "change"
        assert digests_of(changed.plan) == {tag: pinned}
        (renewed,) = decide([spec], fleet, status, {}, renew=True).planned
        assert renewed.change.fields == (f"plan.image: {pinned} → {tag}",)

    def test_several_are_packed_together(self):
        specs = [
            Deployment.model_validate({"name": name, "model": "builtin:tiny", "replicas": 2}) for name in "ab"
        ]
        nodes = (self.node(), self.node(name="that"))
        for planned in decide(specs, Fleet(nodes=nodes), None, {}).planned:
            used = [group.choice.candidate.shape.nodes for group in planned.plan.groups]
            assert sorted(used) == [("that",), ("this",)]
