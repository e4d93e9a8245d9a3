"""`python -m sparkfleet.staging.agent.scan`, on a node: lists requested models, or all of them, and free disk space."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from sparkfleet.checkpoints.io.hub_cache import gguf_names, tagged_reference
from sparkfleet.checkpoints.io.safe_io import read_json_object, read_start
from sparkfleet.errors import FactError
from sparkfleet.runtime.files.builtin_models import builtin_directory
from sparkfleet.runtime.files.kv_pruner import used_bytes
from sparkfleet.runtime.files.state_probe import state_root
from sparkfleet.specs.gguf_names import models_of
from sparkfleet.specs.model_name import ModelName
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.file_selection import wanted
from sparkfleet.staging.locks import is_locked
from sparkfleet.staging.manifest import BUILTIN, COMMIT, File, Kind, Manifest, StagingItem, by_path
from sparkfleet.staging.storage_layout import (
    DirectoryPlace,
    HubPlace,
    StoragePlace,
    begun,
    directory_of,
    free_bytes,
    held,
    hub_directory,
    noted_directories,
    place_of,
    size_of,
)
from sparkfleet.values import Value

REF_BYTES = 256
INDEX_BYTES = 64 << 20
_TOKENIZERS = ("tokenizer.", "tokenizer_config.json", "tekken.json", "vocab.")
_TOKENIZER_SUFFIXES = (".tiktoken", ".model", ".gguf")
"""SentencePiece's models have several names; GGUF has the tokenizer in the file of the weights."""
_BLOB = {64: "sha256", 40: "git-sha1"}


class LookRequest(Value):
    """Items to look for.

    Attributes:
        wanted: models and images by name.
        manifests: those whose files are known.
        needed: the manifests are about to be used, so that `remove` leaves them to those who looked before.
        everything: also list the whole cache of the Hub, built-in models, and what staging has copied to or from here.
        cache: the Hub's cache; "": the one of its user.
    """

    wanted: tuple[StagingItem, ...] = ()
    manifests: tuple[Manifest, ...] = ()
    needed: bool = False
    everything: bool = False
    cache: str = ""


class HeldVersion(Value):
    """One version of a model or image on a node.

    Attributes:
        kind, name, commit: its identity; commit "" if there is none, or it is unknown.
        revisions: branches and tags that point to the commit here.
        manifest: its files, if they are known here; else None.
        complete: True if every file is here.
        held: bytes of complete files, by key.
        begun: bytes of partial files, by key.
        path: the directory to load it from.
        is_copying: True if a process writes to it now.
        changed_ns: of a model of the Hub, the last time at which it was staged or found for a start, by the node's clock.
        no_tokenizer: True for a copy of another tool without one. Drafts have none; of a model it may be the half that
            somebody chose, which only the Hub's list shows.
    """

    kind: Kind
    name: str
    commit: str = ""
    revisions: tuple[str, ...] = ()
    manifest: Manifest | None = None
    complete: bool = False
    held: dict[str, int] = Field(default_factory=dict)
    begun: dict[str, int] = Field(default_factory=dict)
    path: str = ""
    is_copying: bool = False
    changed_ns: int = 0
    no_tokenizer: bool = False

    @property
    def is_interrupted(self) -> bool:
        """True for a directory's copy that was begun and goes on no more: it is under its temporary name."""
        return self.kind != "hub" and not self.held and bool(self.begun) and not self.is_copying

    @property
    def held_bytes(self) -> int:
        """Bytes that are here, those of partial files included."""
        return sum(self.held.values()) + sum(size for key, size in self.begun.items() if key not in self.held)


class NodeScan(Value):
    """Scan of a node: each requested item, each manifest, everything else; free bytes of its cache's disk."""

    free_bytes: int
    kv_bytes: int = 0
    """KV of prompts that deployments with `kv_disk` keep, of all fleets of this user; counted if everything is listed."""
    wanted: tuple[HeldVersion, ...] = ()
    manifests: tuple[HeldVersion, ...] = ()
    everything: tuple[HeldVersion, ...] = ()


def work(request: LookRequest, reporter: LineReporter) -> NodeScan:
    """Scan. Nothing is changed but the times of needed manifests."""
    cache = hub_directory(request.cache)
    for manifest in request.manifests if request.needed else ():
        place = place_of(manifest.kind, manifest.name, request.cache)
        if isinstance(place, HubPlace):
            place.touch(manifest.commit)
    return NodeScan(
        free_bytes=free_bytes(cache),
        kv_bytes=used_bytes(state_root("")) if request.everything else 0,
        wanted=tuple(_wanted(wanted, request.cache) for wanted in request.wanted),
        manifests=tuple(_of_manifest(manifest, request.cache) for manifest in request.manifests),
        everything=tuple(_everything(cache, request.cache)) if request.everything else (),
    )


def _wanted(wanted: StagingItem, cache: str) -> HeldVersion:
    if wanted.kind != "hub":
        path = directory_of(wanted.kind, wanted.name, cache)
        there = path.is_dir() and (wanted.kind != "directory" or Path(wanted.name).exists())
        return HeldVersion(
            kind=wanted.kind, name=wanted.name, complete=there, path=str(path) if there else ""
        )
    place = HubPlace(hub_directory(cache), wanted.name)
    commit = _commit(place.reference(wanted.revision)) or _commit(place.root / "refs" / wanted.revision)
    if commit is None and COMMIT.fullmatch(wanted.revision):
        commit = wanted.revision
    return version_of(place, wanted.name, commit) if commit else HeldVersion(kind="hub", name=wanted.name)


def _of_manifest(manifest: Manifest, cache: str) -> HeldVersion:
    return _held(place_of(manifest.kind, manifest.name, cache), manifest)


def _held(place: StoragePlace, manifest: Manifest) -> HeldVersion:
    here, growing = held(place, manifest), begun(place, manifest)
    if isinstance(place, DirectoryPlace) and not place.published:
        here, growing = {}, growing | here  # complete files, which cannot be loaded yet
    published = not isinstance(place, HubPlace) or _pointed(place, manifest)
    return HeldVersion(
        kind=manifest.kind,
        name=manifest.name,
        commit=manifest.commit,
        revisions=_revisions(place, manifest.commit),
        manifest=manifest,
        complete=published and manifest.complete(here),
        held=here,
        begun=growing,
        path=str(place.root / "snapshots" / manifest.commit) if manifest.kind == "hub" else str(place.root),
        is_copying=is_locked(place.lock),
    )


def _revisions(place: StoragePlace, commit: str) -> tuple[str, ...]:
    """Branches and tags that point to a commit here; of a GGUF model by its own references."""
    if not isinstance(place, HubPlace):
        return ()
    names = references(place.root, commit)
    if not place.tag:
        return tuple(name for name in names if ":" not in name)
    suffix = tagged_reference("", place.tag)
    return tuple(name[: -len(suffix)] for name in names if name.endswith(suffix))


def _pointed(place: HubPlace, manifest: Manifest) -> bool:
    """True if the snapshot has every file: otherwise it cannot be loaded."""
    snapshot = place.root / "snapshots" / manifest.commit
    return all(size_of(snapshot / file.path) == file.size for file in manifest.files)


def version_of(place: HubPlace, name: str, commit: str) -> HeldVersion:
    """The files of a commit here: by staging's record of it, or those that another tool downloaded."""
    manifest = _noted(place, name, commit)
    if manifest is not None:
        return _held(place, manifest)
    manifest, is_whole = _derived_model(place, name, commit)
    if manifest is None:
        return HeldVersion(kind="hub", name=name, commit=commit)
    found, snapshot = _held(place, manifest), place.root / "snapshots" / commit
    return found.model_copy(
        update={
            "complete": found.complete and is_whole,
            "no_tokenizer": not any(map(_is_tokenizer, _files(snapshot))),
        }
    )


def _noted(place: HubPlace, name: str, commit: str) -> Manifest | None:
    """Manifest recorded by staging for a commit; None if there is none, or it is invalid."""
    try:
        manifest = Manifest.model_validate_json(place.record(commit).read_bytes())
    except (OSError, ValidationError):
        return None
    return manifest if (manifest.name, manifest.commit) == (name, commit) else None


def _derived_model(place: HubPlace, name: str, commit: str) -> tuple[Manifest | None, bool]:
    """Files of a model in a snapshot of another tool, and True if it can be loaded; of a GGUF model its own files alone."""
    snapshot = place.root / "snapshots" / commit
    manifest = derived(snapshot, name, commit)
    if manifest is None or not place.tag:
        return manifest, manifest is not None and loadable(snapshot)
    try:
        paths = set(wanted([file.path for file in manifest.files], place.tag, name))
    except FactError:  # it is not there, or not all of it
        paths = set()
    files = tuple(file for file in manifest.files if file.path in paths)
    return (manifest.model_copy(update={"files": files}), True) if files else (None, False)


def derived(snapshot: Path, name: str, commit: str) -> Manifest | None:
    """Manifest of a snapshot downloaded by another tool, with the digests from its links; None if it has no files."""
    files = []
    for path in sorted(_files(snapshot)):
        digest = Path(os.readlink(path)).name if path.is_symlink() else ""
        size, algorithm = size_of(path), _BLOB.get(len(digest))
        if size is None or algorithm is None:
            continue
        relative = path.relative_to(snapshot).as_posix()
        try:
            files.append(
                File.model_validate(
                    {"path": relative, "size": size, "digest": digest, "algorithm": algorithm}
                )
            )
        except ValidationError:
            continue
    return Manifest(kind="hub", name=name, commit=commit, files=by_path(files)) if files else None


def loadable(snapshot: Path) -> bool:
    """True if a snapshot without a manifest has what an engine needs: a config and every shard of its index, or all shards
    of its GGUF models."""
    models = models_of(gguf_names(snapshot))
    if size_of(snapshot / "config.json") is None and (not models or any(one.missing for one in models)):
        return False
    if any(size_of(path) is None for path in _files(snapshot)):
        return False  # a dangling link: its download was interrupted
    index = snapshot / "model.safetensors.index.json"
    if size_of(index) is None:
        return any(path.suffix in (".safetensors", ".bin", ".gguf") for path in _files(snapshot))
    try:
        weights = read_json_object(index, INDEX_BYTES).get("weight_map")
    except FactError:
        return False
    shards = set(map(str, weights.values())) if isinstance(weights, dict) else set()
    return bool(shards) and all(size_of(snapshot / shard) is not None for shard in shards)


def _is_tokenizer(path: Path) -> bool:
    return path.name.startswith(_TOKENIZERS) or path.suffix in _TOKENIZER_SUFFIXES


def _everything(cache: Path, override: str) -> Iterator[HeldVersion]:
    for folder in sorted(cache.glob("models--*")) if cache.is_dir() else ():
        base = folder.name.removeprefix("models--").replace("--", "/", 1)
        for commit, tag in models_in(folder):
            name = ModelName(base, tag=tag).tagged
            place = HubPlace(cache, name)
            changed_ns = place.changed_ns(
                commit
            )  # before the files: what changes meanwhile counts as changed
            yield version_of(place, name, commit).model_copy(update={"changed_ns": changed_ns})
    for path in _builtins(override):
        size = sum(size_of(file) or 0 for file in _files(path))
        name = BUILTIN + path.name.rpartition("-")[0]
        yield HeldVersion(kind="builtin", name=name, complete=True, held={"": size}, path=str(path))
    for manifest in noted_directories(override):
        found = _of_manifest(manifest, override)
        # A complete built-in model is above, and an archive of an image that is complete is about to be loaded.
        if found.held_bytes and (manifest.kind == "directory" or not found.held):
            yield found


def models_in(folder: Path) -> list[tuple[str, str]]:
    """Commits in a repository's folder of the Hub's cache, each with the tags of its GGUF models; "" for other weights.

    A model that staging has recorded without a tag, as the only one of its repository, has none here either.
    """
    found = {_recorded(path) for path in (folder / ".sparkfleet").glob("*.json")}
    for snapshot in (folder / "snapshots").glob("*"):
        if (snapshot.name, "") in found:
            continue
        models = models_of(gguf_names(snapshot))
        found |= {(snapshot.name, one.tag) for one in models}
        if not models or any(path.suffix in (".safetensors", ".bin") for path in _files(snapshot)):
            found.add((snapshot.name, ""))
    return sorted(one for one in found if COMMIT.fullmatch(one[0]))


def _recorded(path: Path) -> tuple[str, str]:
    """Commit and tag of a record."""
    commit, _, tag = path.name.removesuffix(".json").partition(".")
    return commit, tag


def _builtins(override: str) -> Iterator[Path]:
    parent = builtin_directory(Path(override) / ".builtin" if override else None)
    if parent is not None and parent.is_dir():
        yield from (path for path in sorted(parent.iterdir()) if path.is_dir() and path.name[0] != ".")


def references(root: Path, commit: str) -> tuple[str, ...]:
    """Branches and tags that point to a commit, in a model's folder of the Hub's cache."""
    directory = root / "refs"
    found = (path for path in sorted(_files(directory)) if _commit(path) == commit)
    return tuple(path.relative_to(directory).as_posix() for path in found)


def _commit(reference: Path) -> str | None:
    if size_of(reference) is None:
        return None
    text = read_start(reference, REF_BYTES).decode("ascii", errors="replace").strip()
    return text if COMMIT.fullmatch(text) else None


def _files(directory: Path) -> Iterator[Path]:
    """Files and links below a directory; nothing if it does not exist. Directories that are links are not entered."""
    for where, _, names in os.walk(directory):
        for name in names:
            yield Path(where, name)


def main() -> int:
    """Entry point."""
    return program(LookRequest, work)


if __name__ == "__main__":
    sys.exit(main())
