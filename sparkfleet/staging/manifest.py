"""Manifest of a model or image: its files with their sizes and digests, pinned to one commit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sparkfleet.checkpoints.io.hub_cache import check_name
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.specs.model_name import MAIN, model_name
from sparkfleet.values import Value

Kind = Literal["hub", "directory", "builtin", "image"]
Algorithm = Literal["sha256", "git-sha1"]

_DIGEST_LENGTH = {"sha256": 64, "git-sha1": 40}
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
"""A commit of the Hub, in full."""
_REVISION = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
# rsync's daemon expands wildcards in requested paths, and file names are untrusted input.
_PART = re.compile(r"[A-Za-z0-9_.+@=,-]{1,255}", re.ASCII)
MAX_FILES = 20_000
BUILTIN = "builtin:"
"""Prefix of the names of models that are trained on the machine."""


def _relative(path: str) -> str:
    parts = path.split("/")
    if len(path) > 1024 or not all(_PART.fullmatch(part) and part.strip(".") for part in parts):
        raise ValueError(f"{shown(path)} is not a file name that staging accepts")
    return path


def unfit_name(path: str) -> bool:
    """True for a name that staging does not accept although it stays in its directory and is printable."""
    try:
        _relative(path)
    except ValueError:
        return len(path) <= 1024 and path.isprintable() and all(part.strip(".") for part in path.split("/"))
    return False


RelativePath = Annotated[str, AfterValidator(_relative)]


class File(Value):
    """One file: `digest` is the SHA-256 of its bytes, or, for small files of the Hub, git's SHA-1 of them as a blob."""

    path: RelativePath
    size: Annotated[int, Field(ge=0, le=1 << 50)]
    digest: str
    algorithm: Algorithm = "sha256"

    @model_validator(mode="after")
    def _is_a_digest(self) -> Self:
        if len(self.digest) != _DIGEST_LENGTH[self.algorithm] or not _HEX.fullmatch(self.digest):
            raise ValueError(f"{shown(self.digest)} is no {self.algorithm}")
        return self


class Manifest(Value):
    """All files of one version of a model or image.

    Attributes:
        kind: Hub model, directory, built-in model or image.
        name: as a `StagingItem` has it.
        commit: the Hub's commit; empty if there is none.
        files: its files, by path.
    """

    kind: Kind
    name: str
    commit: str = ""
    files: Annotated[tuple[File, ...], Field(max_length=MAX_FILES)]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.commit and not _REVISION.fullmatch(self.commit):
            raise ValueError(f"{shown(self.commit)} is not a commit")
        if len({file.path for file in self.files}) != len(self.files):
            raise ValueError("a file is listed twice")
        return self

    @property
    def size(self) -> int:
        """Bytes of all files; equal files of the Hub are stored once, and count once."""
        return sum(self.contents.values())

    @property
    def contents(self) -> Mapping[str, int]:
        """Bytes by key: files with one key are transferred once."""
        return {self.key(file): file.size for file in self.files}

    def key(self, file: File) -> str:
        """Key of a stored file: the Hub's cache stores by digest, everything else by path."""
        return file.digest if self.kind == "hub" else file.path

    def distinct(self) -> tuple[File, ...]:
        """One file per key, the largest first, so that the last transfers are short."""
        return tuple(sorted({self.key(file): file for file in self.files}.values(), key=_largest_first))

    def missing(self, held: Mapping[str, int]) -> int:
        """Bytes of the files that are not complete; `held` is bytes by key."""
        return sum(size for key, size in self.contents.items() if held.get(key) != size)

    def complete(self, held: Mapping[str, int]) -> bool:
        """True if every file is complete. (`missing` alone cannot show it: a missing file may be empty.)"""
        return all(held.get(key) == size for key, size in self.contents.items())


class StagingItem(Value):
    """A model or image by its name, before its files are known.

    Attributes:
        kind: Hub model, directory, built-in model or image.
        name: Hub id, with the tag of a GGUF model in upper case; absolute directory or GGUF file, `builtin:…`, or image
            reference.
        revision: branch, tag or commit of a Hub id.
    """

    kind: Kind
    name: str
    revision: str = "main"

    @classmethod
    def model(cls, model: str, revision: str | None = None) -> StagingItem:
        """Parse `model` of a deployment: `organisation/name[@revision][:TAG]`, `/path` or `builtin:name`.

        Raises:
            FactError: the name has none of these forms.
        """
        if model.startswith(BUILTIN):
            return cls(kind="builtin", name=model)
        if model.startswith("/"):
            return cls(kind="directory", name=str(Path(model)))
        name = model_name(model)
        wanted = revision or name.revision or MAIN
        check_name(name.base, wanted, name.tag)
        return cls(kind="hub", name=name.tagged, revision=wanted)

    @property
    def title(self) -> str:
        """The name, with the revision if that is not main."""
        if self.revision == MAIN or self.kind != "hub":
            return self.name
        base, _, tag = model_name(self.name)
        return f"{base}@{self.revision}:{tag}" if tag else f"{base}@{self.revision}"


def _largest_first(file: File) -> tuple[int, str]:
    return (-file.size, file.path)


def by_path(files: Iterable[File]) -> tuple[File, ...]:
    """Files sorted by path."""
    return tuple(sorted(files, key=lambda file: file.path))
