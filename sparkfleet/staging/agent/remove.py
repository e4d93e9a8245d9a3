"""`python -m sparkfleet.staging.agent.remove`, on a node: removes one version of a model from its cache, or the interrupted
copy of a directory."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from sparkfleet.checkpoints.io.hub_cache import tagged_reference
from sparkfleet.specs.fields import quote
from sparkfleet.specs.model_name import ModelName, model_name
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.agent.scan import models_in, references, version_of
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.locks import try_lock
from sparkfleet.staging.manifest import COMMIT, Kind, Manifest, StagingItem
from sparkfleet.staging.storage_layout import PART, DirectoryPlace, HubPlace, place_of, size_of
from sparkfleet.values import Value


class RemoveRequest(Value):
    """A commit of a model of the Hub, whose name has the tag of a GGUF model; or the name of a directory, of which only an
    interrupted copy is removed."""

    name: str
    commit: str = ""
    cache: str = ""
    kind: Kind = "hub"
    changed_ns: int | None = None
    """`HeldVersion.changed_ns` when it was found unused: one that has changed since stays. None: it is not compared."""


class Removed(Value):
    """Bytes that were freed."""

    freed_bytes: int
    is_kept: bool = False
    """True if it was staged, or found for a start, since it was found unused: it stays."""


def work(request: RemoveRequest, reporter: LineReporter) -> Removed:
    """Remove a commit, and the blobs that no other commit uses. Raises StagingError if it is being staged now."""
    if request.kind != "image":
        StagingItem.model(request.name)  # a path is built from it
    if request.kind == "hub" and not COMMIT.fullmatch(request.commit):
        raise StagingError(f"{quote(request.commit)} is not a commit.")
    place = place_of(request.kind, request.name, request.cache)
    lock = try_lock(place.lock)
    if lock is None:
        raise StagingError(
            f"{request.name} is being staged on this node right now.", do="Try again when that has ended."
        )
    try:
        if isinstance(place, HubPlace):
            if request.changed_ns not in {None, place.changed_ns(request.commit)}:
                return Removed(freed_bytes=0, is_kept=True)
            others = [one for one in models_in(place.root) if one != (request.commit, place.tag)]
            if place.tag and any(commit == request.commit for commit, _ in others):
                return Removed(freed_bytes=_remove_model(place, request, others))
            return Removed(freed_bytes=_remove(place, request.commit))
        assert isinstance(place, DirectoryPlace)
        return Removed(freed_bytes=_remove_begun(place))
    finally:
        os.close(lock)


def _remove_model(place: HubPlace, request: RemoveRequest, others: Sequence[tuple[str, str]]) -> int:
    """Remove one GGUF model of a commit that has other models: its links, but for files that another one has as well."""
    snapshot = place.root / "snapshots" / request.commit
    kept: set[str] = set()
    for commit, tag in others:
        name = ModelName(model_name(request.name).base, tag=tag).tagged
        held = version_of(HubPlace(place.root.parent, name), name, commit)
        if commit == request.commit and held.manifest is not None:
            kept |= {file.path for file in held.manifest.files}
    mine = version_of(place, request.name, request.commit).manifest
    for reference in references(place.root, request.commit):
        if reference.endswith(tagged_reference("", place.tag)):
            (place.root / "refs" / reference).unlink()
    before = snapshot.stat().st_mtime_ns if snapshot.exists() else None
    for file in mine.files if mine is not None else ():
        if file.path not in kept:
            (snapshot / file.path).unlink(missing_ok=True)
    if before is not None:  # to the other models of the commit nothing has happened
        os.utime(snapshot, ns=(before, before))
    place.record(request.commit).unlink(missing_ok=True)
    return _drop_blobs(place, set(_shown(place.root, "")) | set(_noted(place.root, "")))


def _remove(place: HubPlace, commit: str) -> int:
    for reference in references(place.root, commit):
        (place.root / "refs" / reference).unlink()
    kept = set(_shown(place.root, commit)) | set(_noted(place.root, commit))
    freed = _drop_blobs(place, kept)
    # Last: by these the next run finds what an interruption has left.
    shutil.rmtree(place.root / "snapshots" / commit, ignore_errors=True)
    for record in place.record(commit).parent.glob(f"{commit}*.json"):
        record.unlink()
    if not kept:
        shutil.rmtree(place.root)
    return freed


def _drop_blobs(place: HubPlace, kept: Collection[str]) -> int:
    """Remove the blobs that are not kept; returns their bytes."""
    freed = 0
    for blob in (place.root / "blobs").glob("*"):
        if blob.name.removesuffix(PART) not in kept:
            freed += size_of(blob) or 0
            blob.unlink()
    return freed


def _remove_begun(place: DirectoryPlace) -> int:
    """Remove what an interrupted copy has left. The directory itself is its owner's, also a copied one."""
    freed = sum(
        size_of(Path(where, name)) or 0 for where, _, names in os.walk(place.beside) for name in names
    )
    shutil.rmtree(place.beside, ignore_errors=True)
    return freed


def _shown(root: Path, commit: str) -> Iterator[str]:
    """Names of the blobs in the snapshots of other commits."""
    for where, directories, names in os.walk(root / "snapshots"):
        if Path(where) == root / "snapshots" and commit in directories:
            directories.remove(commit)
        for name in names:
            path = Path(where, name)
            yield Path(os.readlink(path)).name if path.is_symlink() else name


def _noted(root: Path, commit: str) -> Iterator[str]:
    """Digests of files of other commits that are, or were, staged here."""
    for record in (root / ".sparkfleet").glob("*.json"):
        if commit and record.name.partition(".")[0] == commit:
            continue
        try:
            manifest = Manifest.model_validate_json(record.read_bytes())
        except (OSError, ValidationError):
            continue
        yield from (file.digest for file in manifest.files)


def main() -> int:
    """Entry point."""
    return program(RemoveRequest, work)


if __name__ == "__main__":
    sys.exit(main())
