"""Path of a recipe's checkpoint on this machine; builds it once, atomically. Imports torch only to build."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache as once
from functools import partial
from importlib import resources
from pathlib import Path

from sparkfleet.errors import FactError
from sparkfleet.tiny_models.criterion import BuildFacts
from sparkfleet.tiny_models.progress import BuildProgress, OnProgress, silent
from sparkfleet.tiny_models.recipes import AnyRecipe, DamagedRecipe, Head, Recipe, Vision, named, trained

BUILDER_VERSION = 2
"""Part of every digest: raise it if the builder's output changes."""

FACTS = "sparkfleet.json"
"""Measurements of the build, in the checkpoint's directory: a `BuildFacts`."""
UNFINISHED = ".unfinished"
LOCK = ".lock"


def path(name: str, cache: Path | None = None) -> Path:
    """The directory of a recipe's checkpoint, built or not: `<cache>/<name>-<digest>`.

    The digest is of the recipe, its text and the builder's version, so that a changed recipe is never confused with an
    old one. Without `cache` it is in `sparkfleet/builtin` in the XDG cache directory.

    Raises:
        SpecError: there is no such recipe.
        FactError: there is no cache directory, because this user has no home.
    """
    recipe = named(name)
    return (cache or _default_cache()) / f"{name}-{digest(recipe)}"


def is_built(name: str, cache: Path | None = None) -> bool:
    """True if the checkpoint exists: it is renamed into place only when it is complete."""
    return path(name, cache).is_dir()


def ensure(name: str, on_progress: OnProgress = silent, cache: Path | None = None) -> Path:
    """The directory of the checkpoint, built if it is missing. A second builder waits for the first.

    Raises:
        SpecError: there is no such recipe.
        FactError: the directory cannot be written, or a package that a build needs is not installed.
    """
    target = path(name, cache)
    if target.is_dir():
        return target
    recipe = named(name)
    if not isinstance(recipe, Recipe):
        ensure(recipe.of, on_progress, target.parent)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target, name, on_progress):
            if not target.is_dir():
                _sweep(target.parent)
                _build(recipe, target, on_progress)
    except OSError as error:
        raise FactError(
            f"builtin:{name} cannot be built in {target.parent}: {error.strerror or error}.",
            do="Set XDG_CACHE_HOME (or --cache) to a writable directory with 20 MB of free space.",
        ) from error
    return target


def digest(recipe: AnyRecipe) -> str:
    """Digest of a checkpoint's recipe, 12 hexadecimal digits. It includes that of its base recipe."""
    whole = hashlib.sha256(f"{BUILDER_VERSION}\n{recipe.model_dump_json()}\n".encode())
    if not isinstance(recipe, Recipe):
        whole.update(digest(named(recipe.of)).encode())
        return whole.hexdigest()[:12]
    for file in ("chat_template.jinja", *(f"text/{text}" for text in recipe.text)):
        whole.update(hashlib.sha256(_shipped(file)).digest())
    return whole.hexdigest()[:12]


@once
def _shipped(file: str) -> bytes:
    return (resources.files("sparkfleet.tiny_models") / file).read_bytes()


def _build(recipe: AnyRecipe, target: Path, on_progress: OnProgress) -> None:
    """Builds beside the target and renames, so that an incomplete build never gets the target's name."""
    unfinished = _beside(target, UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)  # of a killed builder: this one has the lock
    unfinished.mkdir()
    try:
        _train(recipe, unfinished, on_progress)
        _to_disk(unfinished)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _train(recipe: AnyRecipe, directory: Path, on_progress: OnProgress) -> None:
    on_progress(BuildProgress(name=recipe.name, phase="loading"))
    # Threads that spin while they wait make a build on a busy machine many times slower. torch reads this when loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Importing takes seconds, and gigabytes of libraries: only for a build.
    try:
        build = _builder(recipe, directory.parent)
    except ModuleNotFoundError as error:
        raise FactError(
            f"builtin:{recipe.name} cannot be built: {error.name} is not installed in this Python.",
            means="Built-in models are trained here, with torch, transformers and tokenizers.",
            do='Install them: pip install "sparkfleet[local]".',
        ) from error
    began = time.process_time()
    found = build(directory, on_progress) or BuildFacts(name=recipe.name)
    facts = found.model_copy(update={"cpu_s": round(time.process_time() - began, 1)})
    (directory / FACTS).write_text(facts.model_dump_json(indent=2) + "\n", "utf-8")


def facts(name: str, cache: Path | None = None) -> BuildFacts | None:
    """Stored facts of a build; None if it is not built."""
    stored = path(name, cache) / FACTS
    return BuildFacts.model_validate_json(stored.read_text("utf-8")) if stored.is_file() else None


def _builder(recipe: AnyRecipe, cache: Path) -> Callable[[Path, OnProgress], BuildFacts | None]:
    """Builder of a recipe's checkpoint in an empty directory. Raises ModuleNotFoundError."""
    if isinstance(recipe, DamagedRecipe):
        from sparkfleet.tiny_models import damage

        return partial(damage.build, recipe, path(recipe.of, cache))
    if isinstance(recipe, Vision):
        from sparkfleet.tiny_models import vision

        return partial(vision.build, recipe, path(recipe.of, cache))
    if isinstance(recipe, Head):
        from sparkfleet.tiny_models import drafting

        return partial(drafting.build, recipe, trained(recipe.of), path(recipe.of, cache))
    from sparkfleet.tiny_models import training

    return partial(training.build, recipe)


def _to_disk(directory: Path) -> None:
    """Writes all files to disk before the rename, against a power cut, and makes them readable by all users."""
    for file in directory.iterdir():
        file.chmod(0o644)
    directory.chmod(0o755)
    for place in (*directory.iterdir(), directory):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}{suffix}")


@contextmanager
def _alone(target: Path, name: str, on_progress: OnProgress) -> Iterator[None]:
    """Holds the lock of this checkpoint. The kernel releases it when the process ends, in any way."""
    with _beside(target, LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(BuildProgress(name=name, phase="waiting"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(cache: Path) -> None:
    """Removes the remains of dead builders of other recipes. A builder whose lock is held is alive."""
    for unfinished in cache.glob(f".*{UNFINISHED}"):
        lock = unfinished.with_name(unfinished.name.removesuffix(UNFINISHED) + LOCK)
        with lock.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with suppress(FileNotFoundError):  # its builder has just renamed it
                shutil.rmtree(unfinished)


def _default_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification ignores relative ones
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise FactError("this user has no home directory.", do="Set XDG_CACHE_HOME.") from error
    return base / "sparkfleet" / "builtin"
