from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.images import Image, engine_version_of, images_of, load_images, read_images
from sparkfleet.knowledge.versions import Truth, parse_range, parse_version

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


@pytest.mark.parametrize("image", load_images(), ids=lambda image: image.id)
def test_a_version_inside_can_be_compared(image: Image) -> None:
    assert image.engine_version is None or parse_version(image.engine_version) is not None


def test_builds_of_one_tag_have_names_and_versions_of_their_own() -> None:
    tags = [image.image for image in load_images()]
    moved = [image for image in load_images() if tags.count(image.image) > 1]
    assert {image.image for image in moved} == {"scitrera/dgx-spark-sglang:0.5.12"}
    assert (
        len({image.engine_version for image in moved})
        == len({image.build for image in moved})
        == len(moved)
        == 2
    )


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
    ],
)
def test_the_engine_inside(reference: str, version: str | None) -> None:
    assert engine_version_of(reference) == version


def test_a_digest_distinguishes_builds() -> None:
    images = read_images(TWO_BUILDS)
    assert [image.id for image in images_of("x/y:1", images)] == ["old", "new"]
    assert [image.id for image in images_of(f"x/y:1@{DIGEST}", images)] == ["old"]
    # A digest that nobody has written down may be either.
    assert len(images_of("x/y:1@sha256:" + "00" * 32, images)) == 2


def test_libraries_that_are_not_published_are_not_known() -> None:
    (image,) = images_of("vllm/vllm-openai:v0.27.1")
    assert image.library("flashinfer") == "0.6.16.post3"
    assert image.library("nccl") is None


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("id: new", "id: old", "images.yaml: old: id: is given twice"),
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
        read_images(TWO_BUILDS.replace(old, new, 1))
