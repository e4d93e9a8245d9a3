"""The model that the tests share, a recipe that is trained in a second, and builders in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkfleet.tiny_models import cache
from sparkfleet.tiny_models.criterion import Criterion
from sparkfleet.tiny_models.progress import BuildProgress
from sparkfleet.tiny_models.recipes import TINY, Budget, Recipe

SMALL = TINY.model_copy(
    update={
        "name": "small",
        "config": {**TINY.config, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2},
        "vocabulary": 512,
        "criterion": Criterion(text_perplexity=1e6),
        "budget": Budget(steps=4, rows=2, row_tokens=64, warmup_steps=1, opening_steps=2),
    }
)

BUILDER = """
import sys, types
from pathlib import Path

def build(recipe, directory, on_progress):
    (directory / "half").write_text("half")
    print("building", flush=True)
    sys.stdin.readline()
    (directory / "whole").write_text("whole")

fake = types.ModuleType("sparkfleet.tiny_models.training")
fake.build = build
sys.modules["sparkfleet.tiny_models.training"] = fake
from sparkfleet.tiny_models import cache

def say(progress):
    print(progress.phase, flush=True)

print(cache.ensure("tiny", say, Path(sys.argv[1])), flush=True)
"""
"""Builds no model: writes half a checkpoint, prints a line, waits for a line, and writes the rest."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """For matrices as small as these, several threads of torch wait for each other and take processors from other tests."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small() -> Recipe:
    return SMALL


@pytest.fixture(scope="session")
def small_progress() -> list[BuildProgress]:
    """Progress that the build of `checkpoint` reported."""
    return []


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, small_progress: list[BuildProgress]) -> Path:
    """A complete checkpoint of the recipe `small`."""
    from sparkfleet.tiny_models import training

    directory = tmp_path_factory.mktemp("checkpoint")
    training.build(SMALL, directory, small_progress.append)
    return directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`builtin:tiny` by the command line: a builder in a cache of its own that is killed on the way, then the build in the
    user's cache, which is by the digest of everything that it is made of: trained once, for all tests and runs."""
    own = tmp_path_factory.mktemp("cache")
    build = [sys.executable, "-m", "sparkfleet.tiny_models", "build", "tiny"]
    with subprocess.Popen(
        [*build, "--cache", str(own)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as killed:
        assert any("training, step" in line for line in killed.stderr or ())
        killed.kill()
    assert not cache.is_built("tiny", own)
    built = subprocess.run(build, capture_output=True, text=True, check=True)
    directory = cache.path("tiny")
    assert Path(built.stdout.splitlines()[-1]) == directory
    assert not (directory.parent / f".{directory.name}{cache.UNFINISHED}").exists()
    return directory


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a builder of "tiny" in `tmp_path`, in a process of its own. Whatever is left of them is killed."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", BUILDER, str(tmp_path)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
