"""Images that staging named, listed and removed by the program on a node."""

from __future__ import annotations

import json
import shutil

import pytest
from pydantic import ValidationError

from sparkfleet.staging.agent.images import staged_name
from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.staged_images import StagedImage, StagedImages, StagedImagesRequest, work
from sparkfleet.staging.errors import StagingError

MINE, OTHER = "d" * 64, "e" * 64


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A docker with these names of images, each a directory entry, so that what is removed is gone; notes its commands."""
    names = tmp_path / "names"
    names.mkdir()
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    log = tmp_path / "asked"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\ncd {names}\n'
        'case "$1" in\n'
        "images) [ -e ../broken ] && { echo 'no daemon' >&2; exit 1; }\n"
        "  for one in *; do echo localhost/sparkfleet-staged:$one; done\n"
        "  echo 'localhost/sparkfleet-staged:<none>';;\n"
        'image) cat "${3#*:}";;\n'
        'rmi) [ -e ../used ] && { echo "conflict: container 12 uses it" >&2; exit 1; }; rm "${2#*:}";;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin")

    def make(digest, size=1000, tags=()):
        tags = [f"localhost/sparkfleet-staged:{digest}", *tags]
        (names / digest).write_text(json.dumps([{"Id": f"sha256:{digest}", "Size": size, "RepoTags": tags}]))

    make.names, make.root, make.log = names, tmp_path, log
    return make


def run(*remove):
    return work(StagedImagesRequest(remove=remove), LineReporter())


def test_it_lists_what_staging_named_with_size_and_other_names(docker):
    docker(MINE, 20_000, ["nvcr.io/nvidia/vllm:26.04-py3"])
    docker(OTHER)
    assert run() == StagedImages(
        images=(
            StagedImage(digest=MINE, tool="docker", size=20_000, names=("nvcr.io/nvidia/vllm:26.04-py3",)),
            StagedImage(digest=OTHER, tool="docker", size=1000),
        )
    )
    assert staged_name(f"x@sha256:{MINE}").endswith(MINE)
    assert "rmi" not in docker.log.read_text()


def test_it_removes_those_that_are_named_and_no_other(docker):
    docker(MINE)
    docker(OTHER)
    assert [image.digest for image in run(MINE, "a" * 64).images] == [MINE]
    assert [one.name for one in docker.names.iterdir()] == [OTHER]


def test_one_that_a_container_uses_stays_with_the_reason(docker):
    docker(MINE)
    (docker.root / "used").touch()
    found = run(MINE)
    assert (found.images, found.kept) == ((), (f"{MINE[:12]}: docker: 'conflict: container 12 uses it'",))
    assert (docker.names / MINE).exists()


def test_a_tool_that_cannot_list_is_an_error_and_not_no_image(docker):
    docker(MINE)
    (docker.root / "broken").touch()
    with pytest.raises(StagingError, match="no daemon"):
        run()


def test_an_answer_of_another_form_is_an_error(docker):
    docker(MINE)
    (docker.names / MINE).write_text('[{"Size": "large"}]')
    with pytest.raises(StagingError, match="unknown form"):
        run()


def test_a_node_without_a_tool_has_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run() == StagedImages()


@pytest.mark.parametrize("digest", ["", "-f", "d" * 63, "d" * 64 + "\n", "D" * 64])
def test_what_is_no_digest_is_refused(digest):
    with pytest.raises(ValidationError):
        StagedImagesRequest(remove=(digest,))


@pytest.mark.integration
@pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")
def test_a_real_podman_lists_and_removes(tmp_path, monkeypatch):
    pytest.importorskip("sparkfleet.staging")
