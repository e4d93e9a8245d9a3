from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.engines.engine_models import ENGINE_MODELS
from sparkfleet.knowledge.engines.images import IMAGES, Image, engine_version_of, images_of, requantized_by
from sparkfleet.knowledge.versions import Truth, parse_range, parse_version
from sparkfleet.planner.types.image_refs import tag_words

DIGEST = "sha256:" + "ab" * 32

TWO_BUILDS = f"""
version: 1
images:
- id: old
  image: "x/y:1"
  build: old
  digests: ["{DIGEST}"]
  engine: vllm
  engine_version: "1.0 old"
  status: works
  sources: [s]
  date: "2026"
- id: new
  image: "x/y:1"
  build: new
  engine: vllm
  engine_version: "1.0 new"
  status: broken
  sources: [s]
  date: "2026"
"""


@pytest.mark.parametrize("image", IMAGES.content.images, ids=lambda image: image.id)
def test_a_version_inside_can_be_compared(image: Image) -> None:
    assert image.engine_version is None or parse_version(image.engine_version) is not None


def test_builds_of_one_tag_can_be_told_apart() -> None:
    """By the build's name; and by a digest or a version, or a rule about one of them would fire for all."""
    by_tag: dict[str, list[Image]] = {}
    for image in IMAGES.content.images:
        by_tag.setdefault(image.image, []).append(image)
    moved = {tag: builds for tag, builds in by_tag.items() if len(builds) > 1}
    assert set(moved) == {
        "scitrera/dgx-spark-sglang:0.5.12",
        "eugr/spark-vllm:latest",
        "eugr/spark-vllm-b12x:latest",
    }
    for builds in moved.values():
        assert len({build.build for build in builds}) == len(builds)
        assert len({(build.digests, build.engine_version) for build in builds}) == len(builds)


def test_a_digest_belongs_to_one_image() -> None:
    digests = [digest for image in IMAGES.content.images for digest in image.digests]
    assert len(digests) == len(set(digests)) >= 15


@pytest.mark.parametrize("version", ENGINE_MODELS.content.read["vllm"][1:])
def test_every_recent_release_of_vllm_has_an_image(version: str) -> None:
    (one,) = (i for i in IMAGES.content.images if i.image.startswith("vllm/") and i.engine_version == version)
    assert one.digests or one.status == "unproven"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("vllm/vllm-openai:v0.33.0", "not pinned"),
        ("somebody/else:1", "not pinned"),
        ("vllm/vllm-openai:v0.28.0", "published as sha256:61fc8a896b0a"),
        (
            "eugr/spark-vllm-b12x:latest",
            "not pinned",
        ),  # digests of its older builds are published, not the newest's
    ],
)
def test_a_plan_shows_if_the_digest_of_a_tag_was_published(reference: str, words: str) -> None:
    assert words in tag_words(reference)
    pinned = f"{reference}@{DIGEST}"
    assert tag_words(pinned) == pinned


def test_a_moved_tag_leaves_the_build_open() -> None:
    version = engine_version_of("scitrera/dgx-spark-sglang:0.5.12")
    assert version == "0.5.12"
    assert parse_range("0.5.12 re-tag").contains(version) is Truth.UNKNOWN


@pytest.mark.parametrize(
    ("reference", "version"),
    [
        ("nvcr.io/nvidia/vllm:26.04-py3", "0.19.0"),
        ("vllm/vllm-openai:v0.27.1@" + DIGEST, "0.27.1"),
        ("vllm/vllm-openai:cu130-nightly", None),
        ("somebody/else:1", None),
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("vllm/vllm-openai:v0.31.1-aarch64-cu130@" + DIGEST, "0.31.1"),
        ("vllm/vllm-openai:v0.31.1rc1", None),
        ("vllm/vllm-openai:latest", None),
        ("lmsysorg/sglang:v0.5.23.post1-cu130", "0.5.23.post1"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc14", "1.3.0rc14"),
        ("evil/vllm/vllm-openai:v0.32.0", None),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13-b11459", "b11459"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13-b12000", "b12000"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13", None),
        ("ghcr.io/ggml-org/llama.cpp:server-b12000", None),
    ],
)
def test_the_engine_inside(reference: str, version: str | None) -> None:
    assert engine_version_of(reference) == version


def test_a_digest_distinguishes_builds() -> None:
    images = IMAGES.read(TWO_BUILDS).images
    assert [image.id for image in images_of("x/y:1", images)] == ["old", "new"]
    assert [image.id for image in images_of(f"x/y:1@{DIGEST}", images)] == ["old"]
    # A digest that nobody has written down may be either.
    assert len(images_of("x/y:1@sha256:" + "00" * 32, images)) == 2


def test_libraries_that_are_not_published_are_not_known() -> None:
    (image,) = images_of("vllm/vllm-openai:v0.27.1")
    assert image.library("flashinfer") == "0.6.16.post3"
    assert image.library("nccl") is None


def test_a_build_quantises_further_only_what_it_was_seen_to_load() -> None:
    assert dict(requantized_by("vllm-node-mxfp4:latest", "mxfp4")) == {"attention": 4.25, "head": 4.25}
    assert requantized_by("vllm-node-mxfp4:latest", "fp8") == ()
    assert requantized_by("vllm/vllm-openai:v0.27.1", "mxfp4") == requantized_by("of/nobody:1", "mxfp4") == ()


def test_an_image_without_a_registry_is_taken_by_name_only() -> None:
    (local,), (pulled,) = images_of("vllm-node-tf5:latest"), images_of("vllm/vllm-openai:v0.27.1")
    assert (local.by_name, pulled.by_name) == ("exists only where it was built, in no registry", "")
    assert all(image.built_with for image in IMAGES.content.images if "vllm-node" in image.image)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("id: new", "id: old", "images.yaml: images: old: id: is given twice"),
        ("status: works", "status: fine", "images.yaml: old: status: "),
        ('"x/y:1"', '"x/y"', "images.yaml: old: image: "),
        (DIGEST, "sha256:12", "images.yaml: old: digests.0: "),
        ("engine: vllm", "engine: vlm", "images.yaml: old: engine: "),
        ("build: old", "built: old", "images.yaml: old: built: "),
        ("sources: [s]", "sources: []", "images.yaml: old: sources: "),
    ],
)
def test_a_wrong_image_is_named(old: str, new: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        IMAGES.read(TWO_BUILDS.replace(old, new, 1))
