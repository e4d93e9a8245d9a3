"""Stores models and images on a node, in the Hub's cache layout or a directory; partial files have their own suffix."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from sparkfleet.checkpoints.io.hub_cache import directory_of_path, hub_cache, tagged_reference
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.builtin_models import builtin_path
from sparkfleet.specs.model_name import model_name
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import File, Manifest

PART = ".incomplete"
"""Suffix of a partial file, the same as huggingface_hub 1.x uses: its partial downloads are continued."""
READ_BYTES = 8 << 20


class StoragePlace(Protocol):
    """Storage of the files of one manifest."""

    lock: Path
    """Lock of the process that fills the place."""

    @property
    def root(self) -> Path:
        """Directory that a sender serves."""
        ...

    def final(self, file: File) -> Path:
        """Path of the complete file."""
        ...

    def part(self, file: File) -> Path:
        """Path of the partial file."""
        ...

    def file_lock(self, file: File) -> Path | None:
        """The lock that other tools hold for this one file, if they use one."""
        ...

    def publish(self, manifest: Manifest, revision: str) -> Path:
        """Make the complete files visible to engines; returns the directory to load from."""
        ...


class HubPlace:
    """`models--organisation--name/{blobs,snapshots,refs}` in the cache of huggingface_hub, which every engine reads.

    GGUF models of one repository share it: each has a record of its files and a reference of its own, named by its tag.
    """

    def __init__(self, cache: Path, name: str) -> None:
        base, _, self.tag = model_name(name)
        folder = f"models--{base.replace('/', '--')}"
        self._folder = cache / folder
        self._locks = cache / ".locks" / folder
        self.lock = self._locks / "sparkfleet.lock"

    @property
    def root(self) -> Path:
        """See `StoragePlace.root`."""
        return self._folder

    def final(self, file: File) -> Path:
        """See `StoragePlace.final`."""
        return self.root / "blobs" / file.digest

    def part(self, file: File) -> Path:
        """See `StoragePlace.part`."""
        return self.root / "blobs" / f"{file.digest}{PART}"

    def file_lock(self, file: File) -> Path | None:
        """See `StoragePlace.file_lock`: huggingface_hub's."""
        return self._locks / f"{file.digest}.lock"

    def record(self, commit: str) -> Path:
        """Path of a commit's manifest, so that its files are known without the Hub."""
        return self.root / ".sparkfleet" / f"{commit}{f'.{self.tag}' if self.tag else ''}.json"

    def reference(self, revision: str) -> Path:
        """Path of the file that has the commit of a branch or tag."""
        return self.root / "refs" / tagged_reference(revision, self.tag)

    def publish(self, manifest: Manifest, revision: str) -> Path:
        """See `StoragePlace.publish`. Writes the reference too: loading offline by a branch's name fails without it."""
        snapshot = self.root / "snapshots" / manifest.commit
        for file in manifest.files:
            _point(snapshot / file.path, self.final(file))
        self.note(manifest)
        if revision != manifest.commit:
            self._refer(self.reference(revision), manifest.commit)
            plain = self.root / "refs" / revision
            if (
                self.tag and size_of(plain) is None
            ):  # one that is there may be of other files of the repository
                self._refer(plain, manifest.commit)
        return snapshot

    def _refer(self, path: Path, commit: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, commit.encode(), mode=0o644, durable=True)

    def changed_ns(self, commit: str) -> int:
        """The last time at which a commit was staged or found for a start, by this machine's clock; 0 if it is not here."""
        return max((_changed_ns(path) for path in (self.record(commit), self._snapshot(commit))), default=0)

    def touch(self, commit: str) -> None:
        """Records that a start is about to use a commit, so that it is not removed as unused meanwhile."""
        record = self.record(commit)  # other models of the commit have their own
        with contextlib.suppress(OSError):  # not here, or another user's
            os.utime(record if record.exists() else self._snapshot(commit))

    def _snapshot(self, commit: str) -> Path:
        return self.root / "snapshots" / commit

    def note(self, manifest: Manifest) -> None:
        """Record the files of a commit."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.record(manifest.commit), manifest.model_dump_json().encode(), mode=0o644)


class DirectoryPlace:
    """A plain directory. A new one is filled under a temporary name and renamed when complete."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.beside = target.with_name(f".{target.name}.staging")
        """Its temporary name."""
        # The name of the lock of built-in models: a model is not trained while it is copied.
        self.lock = target.with_name(f".{target.name}.lock")

    @property
    def root(self) -> Path:
        """The directory if it exists, else its temporary name."""
        return self._target if self.published else self.beside

    @property
    def published(self) -> bool:
        """True if the directory has its final name, so that engines can load from it."""
        return self._target.is_dir()

    def final(self, file: File) -> Path:
        """See `StoragePlace.final`."""
        return self.root / file.path

    def part(self, file: File) -> Path:
        """See `StoragePlace.part`."""
        return self.root / f"{file.path}{PART}"

    def file_lock(self, file: File) -> Path | None:
        """See `StoragePlace.file_lock`."""
        return None

    def publish(self, manifest: Manifest, revision: str) -> Path:
        """See `StoragePlace.publish`."""
        if not self.published:
            self.beside.rename(self._target)
        return self._target


def place_of(kind: str, name: str, cache: str = "") -> StoragePlace:
    """Storage place of a model or image on this machine; `cache` overrides the Hub's cache and images' directory."""
    if kind == "hub":
        return HubPlace(hub_directory(cache), name)
    return DirectoryPlace(directory_of(kind, name, cache))


def hub_directory(cache: str = "") -> Path:
    """The Hub's cache of this user, or `cache`. Raises StagingError."""
    return Path(cache) if cache else hub_cache(os.environ, home())


def directory_of(kind: str, name: str, cache: str) -> Path:
    """Directory of a built-in model, an image archive or a plain directory."""
    if kind == "builtin":
        return builtin_path(name, Path(cache) / ".builtin" if cache else None)
    if kind == "image":
        return images_directory(cache) / hashlib.sha256(name.encode()).hexdigest()[:32]
    return directory_of_path(name)


def images_directory(cache: str) -> Path:
    """Directory of image archives in transit."""
    if cache:
        return Path(cache) / ".images"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else home() / ".cache") / "sparkfleet" / "images"


def note_directory(manifest: Manifest, cache: str) -> None:
    """Record what staging copies to or from a directory here: no cache lists it, and its copy may be interrupted."""
    records = _directory_records(cache)
    records.mkdir(parents=True, exist_ok=True)
    path = records / f"{hashlib.sha256(manifest.name.encode()).hexdigest()}.json"
    write_atomically(path, manifest.model_dump_json().encode())


def noted_directories(cache: str) -> Iterator[Manifest]:
    """Manifests of the directories that staging has copied to or from here. They may be gone since."""
    for path in sorted(_directory_records(cache).glob("*.json")):
        try:
            yield Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue


def _directory_records(cache: str) -> Path:
    return images_directory(cache).with_name("directories")


def home() -> Path:
    """This user's home. Raises StagingError if there is none."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise StagingError("this user has no home directory.", do="Set HF_HOME for this user.") from error


def check(path: Path, file: File) -> bool:
    """True if the file at `path` has the size and digest of `file`."""
    with path.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size != file.size:
            return False
        digest = hashlib.sha1(usedforsecurity=False) if file.algorithm == "git-sha1" else hashlib.sha256()
        if file.algorithm == "git-sha1":
            digest.update(b"blob %d\0" % file.size)
        while chunk := opened.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == file.digest


def flush(path: Path) -> None:
    """Returns when the bytes of a file are on the disk: under its final name it would count as whole after a power cut."""
    with path.open("rb") as opened:
        os.fsync(opened.fileno())


def held(place: StoragePlace, manifest: Manifest) -> dict[str, int]:
    """Bytes of the complete files of a manifest here, by key."""
    found = {}
    for file in manifest.distinct():
        size = size_of(place.final(file))
        if size == file.size:
            found[manifest.key(file)] = size
    return found


def begun(place: StoragePlace, manifest: Manifest) -> dict[str, int]:
    """Bytes of the partial files of a manifest here, by key."""
    sizes = {manifest.key(file): size_of(place.part(file)) for file in manifest.distinct()}
    return {key: size for key, size in sizes.items() if size is not None}


def size_of(path: Path) -> int | None:
    """Bytes of a file, None if there is none."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write at `path`, existing or not."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _point(pointer: Path, blob: Path) -> None:
    """Create a relative link as the Hub's cache uses; a correct one is kept."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, pointer.parent)
    if pointer.is_symlink() and os.readlink(pointer) == target:
        return
    beside = pointer.with_name(f".{pointer.name[:64]}.{os.urandom(4).hex()}")
    beside.symlink_to(target)
    beside.replace(pointer)
