"""Models and images that no deployment uses, on nodes of which one is off."""

from types import SimpleNamespace

import pytest
from fake_channel import FakeChannel, program_result
from open_client import OpenClient

import sparkfleet.fleet.storage.prune as module
from sparkfleet.errors import NodeError
from sparkfleet.fleet.storage.prune import remove_surplus, surplus_of
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.settings import StagingSettings

DIGEST = "a" * 64
IMAGE = {"digest": DIGEST, "tool": "docker", "size": 20_000_000_000}
FOUND = program_result({"images": [IMAGE]})


class Client(OpenClient):
    """A controller without a deployment."""

    async def fleet(self):
        return SimpleNamespace(deployments=())


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
