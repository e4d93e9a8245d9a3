"""Nodes are this machine, each with a docker of its own: a program of a few lines with files for images and a registry."""

from __future__ import annotations

import hashlib
import json

import pytest
from node_storage import Apart

from sparkfleet.staging.agent.image_architectures import own_architecture
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.pin_images import pin
from sparkfleet.staging.settings import Need

REPOSITORY = "nvcr.io/nvidia/vllm"
TAG = f"{REPOSITORY}:26.04-py3"
DOCKER = """#!/bin/sh
key() { echo "$1" | tr '/:@' '___'; }
echo "$@" >> "$NODE_DIR/asked"
case $1 in
  image) cat "$NODE_DIR/images/$(key "$3")" 2>/dev/null || exit 1;;
  pull) cp "$NODE_DIR/registry/$(key "$3")" "$NODE_DIR/images/" 2>/dev/null || { echo 'no such host' >&2; exit 1; };;
esac
"""


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Dockers:
    """Nodes of which each has images, and a registry or none."""

    def __init__(self, root):
        self.root = root
        self.channels = {}
        self._program = root / "bin"
        self._program.mkdir()
        (self._program / "docker").write_text(DOCKER)
        (self._program / "docker").chmod(0o755)

    def node(self, name, has=None, registry=None, repository=REPOSITORY, like_id=False, foreign=False):
        """`repository`: of what it has; `like_id`: with a digest that is its id, as in docker on containerd's store;
        `foreign`: what it has is for other processors."""
        own = self.root / name
        for kind, image in (("images", has), ("registry", registry)):
            (own / kind).mkdir(parents=True)
            if image is not None:
                told = {
                    "Id": digest(image if like_id else f"config {image}"),
                    "Size": 1,
                    "RepoDigests": [f"{repository}@sha256:{digest(image)}"],
                }
                if foreign and kind == "images":
                    told["Architecture"] = {"amd64": "arm64", "arm64": "amd64"}[own_architecture()]
                (own / kind / TAG.translate(str.maketrans("/:@", "___"))).write_text(json.dumps([told]))
        self.channels[name] = Apart(name, {"PATH": f"{self._program}:/usr/bin:/bin", "NODE_DIR": str(own)})

    def pulled(self, name):
        asked = self.root / name / "asked"
        return "pull" in (asked.read_text() if asked.exists() else "")

    async def pin(self, *nodes, hub="if-missing", tag=TAG):
        return await pin(self.channels, Need.image(tag, nodes, hub))


@pytest.fixture
def dockers(machines, tmp_path):
    return Dockers(tmp_path)


def reference(image):
    return f"{TAG}@sha256:{digest(image)}"


async def test_an_image_on_a_node_is_used_without_the_registry(dockers):
    dockers.node("n1", registry="new")
    dockers.node("n2", has="old")
    found = await dockers.pin("n1", "n2")
    assert (found.image, found.node, found.others) == (reference("old"), "n2", ())
    assert not dockers.pulled("n1")


async def test_of_two_images_the_first_ranks_is_used_and_the_other_reported(dockers):
    dockers.node("n1", has="old")
    dockers.node("n2", has="new")
    found = await dockers.pin("n2", "n1")
    assert (found.image, found.node, found.others) == (reference("new"), "n2", ("n1",))


async def test_a_node_that_runs_it_counts_before_one_that_does_not(dockers):
    dockers.node("n1", has="old")
    dockers.node("n2", has="new")
    assert (await dockers.pin("n2")).image == reference("new")


async def test_if_no_node_has_it_the_first_one_that_can_pulls(dockers):
    dockers.node("n1")
    dockers.node("n2", registry="new")
    found = await dockers.pin("n1", "n2")
    assert (found.image, found.node) == (reference("new"), "n2")


async def test_an_image_for_other_processors_does_not_count(dockers):
    """A tag's list of builds has one digest, but a build of its own may have been pulled by its digest, or loaded."""
    dockers.node("n1", registry="new")
    dockers.node("n2", has="old", foreign=True)
    found = await dockers.pin("n1")
    assert (found.image, found.node, found.others) == (reference("new"), "n1", ())


async def test_nor_on_the_node_that_needs_it(dockers):
    dockers.node("n1", has="old", registry="new", foreign=True)
    dockers.node("n2")
    found = await dockers.pin("n1", "n2")
    assert (found.image, found.node) == (reference("new"), "n1")
    assert await dockers.pin("n2", hub="never") is not None, "n1 has pulled it"


async def test_the_registry_is_queried_for_a_newer_image_only_if_required(dockers):
    dockers.node("n1", has="old", registry="new")
    assert (await dockers.pin("n1")).image == reference("old")
    assert (await dockers.pin("n1", hub="always")).image == reference("new")


async def test_for_a_lower_rung_nothing_is_fetched_and_every_node_may_be_missing(dockers):
    dockers.node("n1", registry="new")
    assert await dockers.pin("n1", "n9", hub="never") is None
    assert not dockers.pulled("n1")
    with pytest.raises(StagingError, match="n9"):
        await dockers.pin("n1", "n9")


async def test_nodes_without_a_way_to_the_registry(dockers):
    dockers.node("n1")
    dockers.node("n2")
    with pytest.raises(
        StagingError, match=r"^n1: nvcr.*: docker could not download it: .no such host"
    ) as refused:
        await dockers.pin("n1", "n2")
    assert "No node could pull the image" in refused.value.means
    assert "`docker load` it on one node" in refused.value.do


async def test_a_newer_one_that_no_registry_gives_is_an_error(dockers):
    dockers.node("n1", has="old")
    with pytest.raises(StagingError, match="could not download it"):
        await dockers.pin("n1", hub="always")


async def test_an_image_built_on_a_node_is_pinned_by_its_id_without_a_registry(dockers):
    """Whatever it is called: somebody else's image may go by that name there."""
    dockers.node("n1", has="mine", registry="a stranger's", repository="localhost/other")
    for hub in ("if-missing", "always", "never"):
        assert (await dockers.pin("n1", hub=hub)).image == f"{TAG}@sha256:{digest('config mine')}"
    assert not dockers.pulled("n1")


async def test_a_digest_of_a_built_image_that_no_registry_has_is_its_id(dockers):
    dockers.node("n1", has="mine", like_id=True)
    assert (await dockers.pin("n1", hub="always")).image == reference("mine")


async def test_a_built_image_that_no_node_has(dockers):
    dockers.node("n1")
    with pytest.raises(StagingError, match="built on a node"):
        await dockers.pin("n1", hub="always", tag="localhost/tts:latest")
    assert not dockers.pulled("n1")
