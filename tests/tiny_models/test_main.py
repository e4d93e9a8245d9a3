from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sparkfleet.tiny_models import __main__ as main
from sparkfleet.tiny_models import cache
from sparkfleet.tiny_models.progress import BuildProgress


@pytest.fixture
def train(monkeypatch):
    def quickly(recipe, directory, on_progress):
        on_progress(BuildProgress(name=recipe.name, phase="training", step=1, steps=2))

    monkeypatch.setattr(cache, "_train", quickly)


def test_prints_the_directory_to_stdout_and_progress_to_stderr(train, tmp_path, capsys):
    assert main.main(["build", "tiny", "--cache", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{cache.path('tiny', tmp_path)}\n"
    assert "step 1 of 2" in err


def test_several_names_are_built_in_their_order(train, tmp_path, capsys):
    """As a model and its draft are, before an engine starts."""
    assert main.main(["build", "tiny", "tiny-draft", "--quiet", "--cache", str(tmp_path)]) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines() == [str(cache.path(name, tmp_path)) for name in ("tiny", "tiny-draft")]


def test_quiet(train, tmp_path, capsys):
    assert main.main(["build", "tiny", "--quiet", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_an_unknown_name_is_an_error_without_a_traceback(tmp_path, capsys):
    assert main.main(["build", "huge", "--cache", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith('unknown built-in model "huge".')
    assert "Known: tiny, tiny-" in err


def test_interrupted(monkeypatch, tmp_path, capsys):
    def interrupt(recipe, directory, on_progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_train", interrupt)
    assert main.main(["build", "tiny", "--cache", str(tmp_path)]) == 130
    assert not cache.is_built("tiny", tmp_path)


def test_a_built_model_is_found_without_heavy_imports(train, tmp_path):
    directory = cache.ensure("tiny", cache=tmp_path)
    script = (
        "import sys, runpy\n"
        "try:\n    runpy.run_module('sparkfleet.tiny_models', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'ray'} & set(sys.modules)\n"
        "print(code, sorted(heavy), file=sys.stderr)\n"
    )
    argv = [sys.executable, "-c", script, "build", "tiny"]
    # The cache lies where the environment says: no --cache here.
    moved = tmp_path / "xdg" / "sparkfleet" / "builtin"
    moved.parent.mkdir(parents=True)
    moved.symlink_to(tmp_path, target_is_directory=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(moved / directory.name)
    assert done.stderr == "0 []\n"
