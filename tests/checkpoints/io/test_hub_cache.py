from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet.checkpoints.io.hub_cache import hub_cache, name_of, resolve
from sparkfleet.errors import FactError

COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"


def cached(
    cache: Path, *, model: str = "models--Org--Name", commit: str = COMMIT, ref: str | None = COMMIT
) -> Path:
    snapshot = cache / model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    if ref is not None:
        (cache / model / "refs").mkdir()
        (cache / model / "refs" / "main").write_text(ref)
    return snapshot


def test_an_absolute_directory_is_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path), cache=tmp_path) == tmp_path
    with pytest.raises(FactError, match="is not a directory"):
        resolve(str(tmp_path / "nowhere"), cache=tmp_path)
    with pytest.raises(FactError, match="is not a directory"):
        resolve("/" + "x" * 5000, cache=tmp_path)


def test_a_model_in_the_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path)
    assert resolve("Org/Name", cache=tmp_path) == snapshot
    assert name_of(snapshot) == ("Org/Name", COMMIT)
    assert resolve("Org/Name", revision=COMMIT, cache=tmp_path) == snapshot


def test_a_model_of_no_organisation(tmp_path: Path) -> None:
    assert resolve("gpt2", cache=tmp_path) if cached(tmp_path, model="models--gpt2") else None


def test_another_revision_is_another_snapshot(tmp_path: Path) -> None:
    cached(tmp_path)
    with pytest.raises(FactError, match=r"Org/Name \(revision v2\) is not in the local cache") as caught:
        resolve("Org/Name", revision="v2", cache=tmp_path)
    assert "models pull Org/Name" in caught.value.do


def test_a_snapshot_without_a_config_counts_as_not_there(tmp_path: Path) -> None:
    (cached(tmp_path) / "config.json").unlink()
    with pytest.raises(FactError, match="not in the local cache"):
        resolve("Org/Name", cache=tmp_path)


@pytest.mark.parametrize("reference", ["../../../etc", "", "main", "x" * 300, "\0", "../" + COMMIT])
def test_a_damaged_cache_does_not_lead_elsewhere(tmp_path: Path, reference: str) -> None:
    cached(tmp_path, ref=reference)
    with pytest.raises(FactError, match="not a commit"):
        resolve("Org/Name", cache=tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "../x",
        "a/b/c",
        "org/..",
        "org/na--me",
        "org\\name",
        "~/model",
        "./model",
        "org/name\n",
        "builtin:tiny",
    ],
)
def test_neither_a_directory_nor_an_id(tmp_path: Path, model: str) -> None:
    with pytest.raises(FactError, match="neither an absolute directory nor a Hub id"):
        resolve(model, cache=tmp_path)


@pytest.mark.parametrize("revision", ["", "../x", "/etc", "a b"])
def test_an_invalid_revision(tmp_path: Path, revision: str) -> None:
    with pytest.raises(FactError, match="is not a revision"):
        resolve("Org/Name", revision=revision, cache=tmp_path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "/home/u/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/x"}, "/hf/hub"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"}, "/hub"),
        ({"HF_HUB_CACHE": "", "HF_HOME": ""}, "/home/u/.cache/huggingface/hub"),
        ({"HF_HOME": "~/hf"}, "/home/u/hf/hub"),
        ({"HF_HUB_CACHE": "~"}, "/home/u"),
        ({"XDG_CACHE_HOME": "~/x"}, "/home/u/x/huggingface/hub"),
        ({"HF_HOME": "$DISK/${NAME}/$GONE", "DISK": "/disk", "NAME": "hf"}, "/disk/hf/$GONE/hub"),
        ({"HF_HOME": "~root/hf"}, f"{os.path.expanduser('~root')}/hf/hub"),
    ],
)
def test_the_directory_of_the_cache(environment: dict[str, str], expected: str) -> None:
    assert hub_cache(environment, Path("/home/u")) == Path(expected)


@pytest.mark.parametrize(
    "environment",
    [
        {"HF_HOME": "~/hf"},
        {"HF_HUB_CACHE": "$PLACE/${PLACE}/hub", "PLACE": "/p"},
        {"XDG_CACHE_HOME": "~/x"},
    ],
)
def test_the_directory_is_that_of_the_library(environment: dict[str, str], tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    program = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    env = {**clean, **environment, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert hub_cache(environment, tmp_path) == Path(done.stdout.strip())


def test_the_name_of_any_other_directory_is_its_path(tmp_path: Path) -> None:
    assert name_of(tmp_path) == (str(tmp_path), None)


def test_gguf_models_of_a_repository_by_their_tags(tmp_path: Path) -> None:
    old = cached(tmp_path, commit="1" * 40, ref=None)
    new = cached(tmp_path, commit=COMMIT)
    (old / "a-Q4_K_M.gguf").write_bytes(b"")
    (new / "Q8").mkdir()
    (new / "Q8" / "a-Q8_0.gguf").write_bytes(b"")
    refs = tmp_path / "models--Org--Name" / "refs"
    (refs / "main:Q4_K_M").write_text("1" * 40)
    assert resolve("Org/Name", tag="Q4_K_M", cache=tmp_path) == old
    assert resolve("Org/Name", tag="Q8_0", cache=tmp_path) == new
    assert resolve("Org/Name", cache=tmp_path) == new
    with pytest.raises(FactError, match=r"Org/Name:Q2_K .* is not in the local cache"):
        resolve("Org/Name", tag="Q2_K", cache=tmp_path)
    with pytest.raises(FactError, match="is not the tag of a GGUF model"):
        resolve("Org/Name", tag="../x", cache=tmp_path)


def test_the_directory_of_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    assert resolve(str(tmp_path / "a.gguf"), cache=tmp_path) == tmp_path
