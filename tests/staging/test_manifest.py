from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkfleet.errors import FactError
from sparkfleet.staging.manifest import File, Manifest, StagingItem

SHA = "a" * 64


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/passwd",
        "a//b",
        "a/../b",
        "",
        ".",
        "a/.",
        "a\nb",
        "a*",
        "a[1]",
        "a b",
        "a\0b",
        "-" * 300,
        "ü",
    ],
)
def test_a_path_that_leads_elsewhere_or_means_something_to_rsync_is_refused(path):
    with pytest.raises(ValidationError):
        File(path=path, size=1, digest=SHA)


@given(st.text(max_size=30))
def test_no_path_that_passes_leaves_its_directory(path):
    try:
        file = File(path=path, size=1, digest=SHA)
    except ValidationError:
        return
    assert not file.path.startswith("/")
    assert all(part not in ("", ".", "..") for part in file.path.split("/"))


@pytest.mark.parametrize("digest", ["", "A" * 64, "g" * 64, "a" * 40, "../" + "a" * 61])
def test_a_digest_becomes_a_file_name_and_must_be_one(digest):
    with pytest.raises(ValidationError):
        File(path="x", size=1, digest=digest)


def test_equal_files_of_the_hub_are_one_blob_and_of_a_directory_two_files():
    files = (File(path="a", size=5, digest=SHA), File(path="b", size=5, digest=SHA))
    assert Manifest(kind="hub", name="o/n", commit="1" * 40, files=files).size == 5
    assert Manifest(kind="directory", name="/d", files=files).size == 10


def test_complete_is_every_file_and_not_only_every_byte():
    files = (File(path="a", size=5, digest=SHA), File(path="empty", size=0, digest="b" * 64))
    manifest = Manifest(kind="directory", name="/d", files=files)
    assert manifest.missing({"a": 5}) == 0
    assert not manifest.complete({"a": 5})
    assert manifest.complete({"a": 5, "empty": 0})
    assert not manifest.complete({"a": 4, "empty": 0})


def test_a_file_may_not_be_listed_twice():
    file = File(path="a", size=5, digest=SHA)
    with pytest.raises(ValidationError):
        Manifest(kind="directory", name="/d", files=(file, file))


def test_models_of_a_deployment():
    assert StagingItem.model("builtin:tiny") == StagingItem(kind="builtin", name="builtin:tiny")
    assert StagingItem.model("/models/x/") == StagingItem(kind="directory", name="/models/x")
    assert StagingItem.model("org/name") == StagingItem(kind="hub", name="org/name")
    assert StagingItem.model("org/name@v1") == StagingItem(kind="hub", name="org/name", revision="v1")
    assert StagingItem.model("org/name@v1", "v2").revision == "v2"


@pytest.mark.parametrize("model", ["../x", "a/b/c", "org/na me", "", "org/name@../x", "org/name@-x"])
def test_an_invalid_model_is_an_error(model):
    with pytest.raises(FactError):
        StagingItem.model(model)
