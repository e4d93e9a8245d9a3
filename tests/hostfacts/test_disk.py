"""The program that reads disks, run on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sparkfleet.checkpoints.io.hub_cache import hub_cache
from sparkfleet.errors import FactError
from sparkfleet.hostfacts.disk import Disks, ReadDisks


def read(**environment: str) -> Disks:
    argv = [sys.executable, *ReadDisks.argv[1:]]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    done = subprocess.run(argv, env={**clean, **environment}, capture_output=True, text=True, check=True)
    return ReadDisks.parse(done.stdout)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"XDG_CACHE_HOME": "/x"},
        {"HF_HOME": "/hf", "XDG_CACHE_HOME": "/x"},
        {"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"},
        {"HF_HOME": "~/hf"},
        {"HF_HUB_CACHE": "$PLACE/${PLACE}/hub", "PLACE": "/p"},
        {"XDG_CACHE_HOME": "~/x"},
    ],
)
def test_the_cache_is_the_one_that_checkpoints_are_read_from(environment, tmp_path):
    found = read(HOME=str(tmp_path), **environment)
    assert Path(found.hub) == Path(found.places["hub"].path) == hub_cache(environment, tmp_path)


def test_data_sets_in_the_cache_take_no_place_of_models(tmp_path):
    for number in range(500):
        (tmp_path / f"datasets--org--d{number}").mkdir()
    (tmp_path / "models--org--m" / "blobs").mkdir(parents=True)
    (tmp_path / "models--org--m" / "blobs" / "one").write_bytes(b"abc")
    (one,) = read(HF_HUB_CACHE=str(tmp_path)).models
    assert (one.id, one.size, one.refs_main) == ("org/m", 3, False)


def test_gguf_files_of_a_repository_have_their_names_and_sizes(tmp_path):
    model = tmp_path / "models--org--m-GGUF"
    (model / "blobs").mkdir(parents=True)
    for at, (commit, name) in enumerate((("a", "m-Q4_K_M.gguf"), ("b", "Q8_0/m-00001-of-00002.gguf"))):
        (model / "blobs" / f"{at}").write_bytes(b"x" * (at + 3))
        link = model / "snapshots" / commit / name
        link.parent.mkdir(parents=True)
        link.symlink_to(model / "blobs" / f"{at}")
    (model / "snapshots" / "a" / "m-Q5_K_M.gguf").symlink_to(model / "blobs" / "gone")
    (model / "snapshots" / "a" / "README.md").write_text("m")
    (one,) = read(HF_HUB_CACHE=str(tmp_path)).models
    assert one.size == 7
    assert one.ggufs == {"m-Q4_K_M.gguf": 3, "Q8_0/m-00001-of-00002.gguf": 4}


@pytest.mark.parametrize("files", ["x", [], {"a.gguf": "x"}])
def test_sizes_of_gguf_files_that_are_none_are_refused_or_not_counted(files):
    output = json.dumps({"hub": "/hub", "models": [["org/m", 3, True, files]], "places": {}})
    if isinstance(files, dict):
        assert ReadDisks.parse(output).models[0].ggufs == {"a.gguf": 0}
    else:
        with pytest.raises(FactError):
            ReadDisks.parse(output)


def test_directories_in_which_the_user_may_not_write_are_named():
    """A container that ran as root leaves them: docker makes the directory of a mount that does not exist yet."""
    with TemporaryDirectory() as place:  # not tmp_path, which only root may enter
        hub = Path(place, "huggingface", "hub")
        Path(place).chmod(0o755)
        hub.parent.mkdir()
        hub.parent.chmod(0o555)
        assert locked(hub) == (str(hub.parent),), "the cache itself does not exist yet"
        hub.parent.chmod(0o755)
        model = hub / "models--org--m"
        (model / "blobs").mkdir(parents=True)
        for path, mode in ((hub, 0o777), (model, 0o555), (model / "blobs", 0o555)):
            path.chmod(mode)
        assert locked(hub) == (str(model), str(model / "blobs"))
        for path in (model, model / "blobs"):
            path.chmod(0o777)
        assert locked(hub) == ()
        hub.parent.chmod(0o555)
        assert locked(hub, XDG_CACHE_HOME=str(hub.parent)) == (str(hub.parent),)


def locked(hub: Path, **more: str) -> tuple[str, ...]:
    user = 65534 if os.getuid() == 0 else None  # root may write everywhere
    argv = [*ReadDisks.argv]  # the system's Python, which every user may run
    done = subprocess.run(
        argv,
        env={"HF_HUB_CACHE": str(hub), "HOME": "/tmp", "PATH": os.defpath, **more},
        capture_output=True,
        text=True,
        check=True,
        user=user,
    )
    return ReadDisks.parse(done.stdout).locked
