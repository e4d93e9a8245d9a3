from types import SimpleNamespace
from typing import ClassVar

import pytest
from fake_channel import FakeChannel
from rungs import plan_of
from rungs import rung as planned

import sparkfleet.fleet.storage.stage as module
from sparkfleet.errors import NodeError
from sparkfleet.fleet.events import FactFound
from sparkfleet.fleet.storage.stage import fallbacks_of, moving, needs_of, pin_images, stage_plans
from sparkfleet.planner.rules.failure_memory import RememberedFailure, fingerprint
from sparkfleet.planner.types.image_refs import with_digests
from sparkfleet.specs.inventory import Inventory, Node
from sparkfleet.staging.agent.images import ImageRequest
from sparkfleet.staging.agent.scan import LookRequest
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.pin_images import Pinned
from sparkfleet.staging.settings import StagingSettings

MODEL = "org/model"
IMAGE = "registry.test/vllm@sha256:" + "a" * 64
OTHER = "registry.test/sglang@sha256:" + "b" * 64
TAG, OTHER_TAG = IMAGE.partition("@")[0], OTHER.partition("@")[0]


def rung(*nodes, image=IMAGE, draft=None, engine="vllm"):
    method = "eagle3" if draft else "none"
    return planned(*nodes, method=method, draft=draft, image=image, engine=engine, runtime="container")


def told(needs):
    return [(need.wanted.kind, need.wanted.name, need.nodes) for need in needs]


def test_a_first_rung_needs_model_draft_and_image_on_each_of_its_nodes():
    found = needs_of([plan_of(rung("a", "b", draft="org/draft"), rung("c"))])
    assert told(found) == [
        ("hub", MODEL, ("a", "b")),
        ("hub", "org/draft", ("a", "b")),
        ("image", IMAGE, ("a", "b")),
    ]


@pytest.mark.parametrize("is_staged", [True, False])
def test_the_model_of_a_custom_workload_is_brought_if_it_is_to_be(is_staged):
    own = rung("a", engine="custom")
    own = own.model_copy(update={"candidate": own.candidate.model_copy(update={"stage_model": is_staged})})
    kinds = [need.wanted.kind for need in needs_of([plan_of(own)])]
    assert kinds == (["hub", "image"] if is_staged else ["image"])


def test_a_thing_that_two_deployments_need_is_brought_once():
    assert told(needs_of([plan_of(rung("a")), plan_of(rung("b"))])) == [
        ("hub", MODEL, ("a", "b")),
        ("image", IMAGE, ("a", "b")),
    ]


def test_lower_rungs_have_the_same_things_where_they_are_not_yet():
    found = fallbacks_of([plan_of(rung("a"), rung("b"), rung("a", "b", "c"))])
    assert told(found) == [("hub", MODEL, ("b", "c")), ("image", IMAGE, ("b", "c"))]


def test_what_only_a_lower_rung_needs_is_not_fetched():
    found = fallbacks_of(
        [plan_of(rung("a"), rung("a", image=OTHER, engine="sglang"), rung("a", draft="org/draft"))]
    )
    assert told(found) == []


def test_everything_that_a_group_needs_without_a_lost_node_is_fetched():
    found = fallbacks_of(
        [plan_of(rung("a", "b"), rung("c", image=OTHER, engine="sglang", draft="org/draft"))]
    )
    assert told(found) == [("hub", MODEL, ("c",)), ("hub", "org/draft", ("c",)), ("image", OTHER, ("c",))]


async def test_a_node_that_is_off_is_noted_once_for_all_that_is_staged():
    sent = []
    session = SimpleNamespace(noted=set())
    off = {"n2": FakeChannel("n2", {(): NodeError("n2 does not answer")})}
    for _ in ("pin", "stage"):
        nodes = StagingNodes(
            off, StagingSettings(python={"n2": "/env/bin/python"}), moving(session, sent.append)
        )
        await nodes.look((), LookRequest(everything=True))
        await nodes.images(("n2",), ImageRequest(action="look", image=TAG), ())
    assert [one.progress.text for one in sent] == ["left out: n2 does not answer"]


class Nowhere:
    """A session of which nothing but its Pythons is asked."""

    channels: ClassVar = {}

    @property
    def programs(self):
        return self

    async def pythons(self, on_event):
        return {}


@pytest.fixture
def asked(monkeypatch):
    """Requests to `pin`: tags with `hub`. Of lower rungs' images nothing is anywhere."""
    asked = []

    async def pin(channels, need, progress, *, settings):
        asked.append((need.wanted.name, need.nodes, need.hub))
        image = {TAG: IMAGE, OTHER_TAG: OTHER}[need.wanted.name]
        return None if need.hub == "never" else Pinned(image=image, node=need.nodes[0], others=("c",))

    monkeypatch.setattr(module, "pin", pin)
    return asked


async def test_every_tag_is_looked_up_once_and_is_a_fact(asked):
    plans = [plan_of(rung("a", "b", image=TAG), rung("b", image=TAG)), plan_of(rung("c", image=TAG))]
    events = []
    found = await pin_images(Nowhere(), plans, (), events.append)
    assert found == tuple(with_digests(one, {TAG: IMAGE}) for one in plans)
    assert asked == [(TAG, ("a", "b", "c"), "if-missing")]
    assert events == [
        FactFound(line=f"{TAG} is sha256:{'a' * 12}…, as on a; the other image of this tag on c is not used")
    ]


async def test_with_a_digest_nothing_is_asked(asked):
    plans = (plan_of(rung("a"), rung("b")),)
    assert await pin_images(Nowhere(), plans, ()) == plans
    assert asked == []


async def test_an_image_of_a_lower_rung_alone_is_not_asked_of_its_registry(asked):
    events = []
    plans = (plan_of(rung("a", image=TAG), rung("a", image=OTHER_TAG, engine="sglang")),)
    (found,) = await pin_images(Nowhere(), plans, (), events.append, renew=True)
    assert asked == [(TAG, ("a",), "always"), (OTHER_TAG, ("a",), "never")]
    assert [one.candidate.image for one in found.groups[0].ladder] == [IMAGE, OTHER_TAG]
    assert not any(OTHER_TAG in event.line for event in events)


async def test_what_did_not_start_by_its_digest_makes_room_for_the_next_rung(asked):
    plans = (plan_of(rung("a", image=TAG), rung("a", image=OTHER_TAG, engine="sglang")),)
    failed = RememberedFailure(fingerprint=fingerprint(rung("a").candidate, ()), words="out of memory")
    (found,) = await pin_images(Nowhere(), plans, (failed,))
    assert [one.candidate.image for one in found.groups[0].ladder] == [OTHER]
    assert asked[-1] == (OTHER_TAG, ("a",), "if-missing")


async def test_on_this_machine_alone_an_image_is_brought_and_what_is_trained_there_is_not(monkeypatch):
    class Here(Nowhere):
        inventory = Inventory(fleet="home", head="a", nodes={"a": Node(address="local")})

    brought = []

    async def stage(inventory, channels, needs, progress, *, settings):
        brought.extend(need.wanted.name for need in needs)
        return ()

    monkeypatch.setattr(module, "stage", stage)
    first = rung("a")
    trained = first.model_copy(
        update={"candidate": first.candidate.model_copy(update={"model": "builtin:tiny"})}
    )
    await stage_plans(Here(), [plan_of(trained)])
    assert brought == [IMAGE]
