"""Models and images that no deployment uses, on nodes of which one is off."""

import json
from types import SimpleNamespace

import pytest
from fake_channel import FakeChannel, program_result
from open_client import OpenClient

import sparkfleet.fleet.storage.prune as module
from sparkfleet.errors import NodeError
from sparkfleet.fleet.storage import models
from sparkfleet.fleet.storage.prune import remove_surplus, surplus_of
from sparkfleet.staging.agent.scan import HeldVersion
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.settings import StagingSettings

DIGEST = "a" * 64
IMAGE = {"digest": DIGEST, "tool": "docker", "size": 20_000_000_000}
FOUND = program_result({"images": [IMAGE]})


class Client(OpenClient):
    """A controller without a deployment."""

    deployments = ()

    async def fleet(self):
        return SimpleNamespace(deployments=self.deployments)


@pytest.fixture
def fleet(monkeypatch):
    """The session, and the notes of staging: n1 has an image, n2 is off."""
    channels = {
        "n1": FakeChannel("n1", {(): FOUND}),
        "n2": FakeChannel("n2", {(): NodeError("n2 does not answer")}),
    }
    notes = []
    python = dict.fromkeys(channels, "/env/bin/python")
    nodes = StagingNodes(channels, StagingSettings(python=python), notes.append)

    async def staging_nodes(session, on_event):
        return nodes

    async def no_models(*_):
        return ()

    async def controller():
        return Client()

    monkeypatch.setattr(module, "staging_nodes", staging_nodes)
    monkeypatch.setattr(module, "unused_models", no_models)
    monkeypatch.setattr(module, "remove_models", no_models)
    return SimpleNamespace(channels=channels, controller=controller), notes


async def test_a_node_that_is_off_is_left_out_and_the_others_are_pruned(fleet):
    """Its own note said that it was left out, and then `prune` failed because of it."""
    session, notes = fleet
    surplus = await surplus_of(session, frozenset(), print)
    assert {node: [image.digest for image in images] for node, images in surplus.images.items()} == {
        "n1": [DIGEST]
    }
    assert [note.text for note in notes] == ["left out: n2 does not answer"]
    removed = await remove_surplus(session, surplus, print)
    assert list(removed.images) == ["n1"]


def using(text):
    """A deployment with this text in its file."""
    return SimpleNamespace(plan=None, spec=json.dumps({"some": text}))


async def test_an_image_that_was_applied_since_it_was_listed_stays(fleet, monkeypatch):
    session, _ = fleet
    surplus = await surplus_of(session, frozenset(), print)
    monkeypatch.setattr(Client, "deployments", (using(f"x@sha256:{DIGEST}"),))
    assert (await remove_surplus(session, surplus, print)).images == {}


async def test_a_model_that_was_applied_since_it_was_listed_stays_and_is_named(fleet, monkeypatch):
    """The surplus was computed before the question, and removed after it."""
    session, _ = fleet
    channel = FakeChannel("n1", {(): program_result({"freed_bytes": 5})})
    nodes = StagingNodes({"n1": channel}, StagingSettings(python={"n1": "/env/bin/python"}), print)

    async def staging_nodes(*_):
        return nodes

    monkeypatch.setattr(models, "staging_nodes", staging_nodes)
    rows = [
        (held, {"n1": held})
        for held in (HeldVersion(kind="hub", name=name, commit="a" * 40) for name in ("org/used", "org/not"))
    ]
    monkeypatch.setattr(Client, "deployments", (using("org/used"),))
    used, unused = await models.remove_models(session, rows, print)
    assert (used.freed_bytes, unused.freed_bytes, unused.kept) == ({}, {"n1": 5}, {})
    assert list(models.kept_lines((used, unused))) == ["org/used stays on n1: a deployment uses it now."]
