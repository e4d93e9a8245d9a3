"""Where a recipe's checkpoint lies on this machine; builds it once, atomically. Imports torch only to build."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from sparkfleet.builtin.progress import OnProgress, Progress, silent
from sparkfleet.builtin.recipes import Recipe, named

BUILDER_VERSION = 1
"""Part of every digest: raise it when the builder changes what it writes."""


def path(name: str, cache: Path | None = None) -> Path:
    """The directory that a recipe's checkpoint has, or would have.

    Its name holds a digest of the recipe, its text and the builder's version, so that a changed recipe is never
    taken for an old one.

    Raises:
        SpecError: there is no such recipe.
    """
    recipe = named(name)
    return (cache or _default_cache()) / f"{name}-{digest(recipe)}"


def is_built(name: str, cache: Path | None = None) -> bool:
    """Whether the checkpoint is there, whole: it is renamed into place when it is complete, and only then."""
    return path(name, cache).is_dir()


def ensure(name: str, on_progress: OnProgress = silent, cache: Path | None = None) -> Path:
    """The directory of the checkpoint, built if it is not there. A second builder waits for the first.

    Raises:
        SpecError: there is no such recipe.
    """
    target = path(name, cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target, name, on_progress):
        if not target.is_dir():
            _build(named(name), target, on_progress)
    return target


def digest(recipe: Recipe) -> str:
    """What a checkpoint is made of, in 12 hexadecimal digits."""
    whole = hashlib.sha256(f"{BUILDER_VERSION}\n{recipe.model_dump_json()}\n".encode())
    folder = resources.files("sparkfleet.builtin")
    for file in ("chat_template.jinja", *(f"text/{text}" for text in recipe.text)):
        whole.update((folder / file).read_bytes())
    return whole.hexdigest()[:12]


def _build(recipe: Recipe, target: Path, on_progress: OnProgress) -> None:
    """Build beside the target and rename. Whoever holds the lock is alone, so what lies there is of the dead."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    on_progress(Progress(name=recipe.name, phase="loading"))
    # Threads that spin while they wait make a build on a busy machine ten times slower. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Seconds to import, and gigabytes of libraries: only where there is something to do.
    from sparkfleet.builtin import training

    training.build(recipe, unfinished, on_progress)
    os.sync()
    unfinished.rename(target)


@contextmanager
def _alone(target: Path, name: str, on_progress: OnProgress) -> Iterator[None]:
    """Hold the lock of this checkpoint. The kernel lets go of it when its holder dies, however it dies."""
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(Progress(name=name, phase="waiting"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "sparkfleet" / "builtin"
