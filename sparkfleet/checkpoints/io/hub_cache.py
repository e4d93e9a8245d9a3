"""Finds checkpoints on this machine: directories, and the local cache of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sparkfleet.checkpoints.io.safe_io import present, read_start, shown
from sparkfleet.errors import Cause, FactError
from sparkfleet.specs.gguf_names import SUFFIX, models_of
from sparkfleet.specs.model_name import is_hub_tag

REF_BYTES = 256

_ID = re.compile(r"(?!.*(\.\.|--))[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./-]{0,99}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_SNAPSHOT = re.compile(r"models--(?P<id>[\w.-]+)/snapshots/(?P<revision>[0-9a-f]{7,64})\Z", re.ASCII)

_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)


def check_name(model: str, revision: str = "main", tag: str = "") -> None:
    """Raises FactError for a name that cannot be a Hub id, or a revision or a tag that cannot be one."""
    if not _ID.fullmatch(model):
        raise FactError(
            f"{shown(model)} is neither an absolute directory nor a Hub id.",
            do="Write it as /path/to/checkpoint or as organisation/name.",
        )
    if not _REVISION.fullmatch(revision):
        raise FactError(f"{shown(revision)} is not a revision.", do="Give a branch, a tag or a commit.")
    if tag and not is_hub_tag(tag):
        raise FactError(
            f"{shown(tag)} is not the tag of a GGUF model.", do="Write its quantisation, such as :Q4_K_M."
        )


def resolve(model: str, *, revision: str = "main", tag: str = "", cache: Path) -> Path:
    """The directory of a checkpoint on this machine.

    Args:
        model: an absolute directory, the absolute path of a GGUF file, or a Hub id.
        revision: branch, tag or commit of a Hub id.
        tag: of a GGUF model.
        cache: the Hub's cache (`hub_cache`).

    Raises:
        FactError: neither a directory nor a Hub id, or it is not on this machine.
    """
    if model.startswith("/"):
        return _directory(directory_of_path(model))
    check_name(model, revision, tag)
    found = cached_snapshot(model, revision, cache, tag)
    if found is None:
        named = f"{model}:{tag}" if tag else model
        raise FactError(
            f"{named} (revision {revision}) is not in the local cache.",
            means="Its config and sizes are not known, so it cannot be planned.",
            do=f"Run `sparkfleet models pull {named}`, or give the directory of the checkpoint.",
            because=Cause.MISSING,
        )
    return found


def is_offline(environment: Mapping[str, str]) -> bool:
    """True if HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids requests to the Hub, by huggingface_hub's own reading."""
    value = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def hub_cache(environment: Mapping[str, str], home: Path) -> Path:
    """The directory that huggingface_hub caches models in: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, or below `home`."""
    if environment.get("HF_HUB_CACHE"):
        return _expanded(environment["HF_HUB_CACHE"], environment, home)
    if environment.get("HF_HOME"):
        return _expanded(environment["HF_HOME"], environment, home) / "hub"
    base = environment.get("XDG_CACHE_HOME")
    return (_expanded(base, environment, home) if base else home / ".cache") / "huggingface" / "hub"


def _expanded(text: str, environment: Mapping[str, str], home: Path) -> Path:
    """A path with `~` and variables expanded, as huggingface_hub does: a systemd unit or a .env file leaves them as text."""
    if text == "~" or text.startswith("~/"):
        text = f"{home}{text[1:]}"
    text = os.path.expanduser(text)
    return Path(_VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), text))


def cached_snapshot(model: str, revision: str, cache: Path, tag: str = "") -> Path | None:
    """The snapshot of a model in the Hub's cache, if it has a config.json or GGUF models; with a tag, if it has that one.

    Raises:
        FactError: the cache refers to a path outside itself.
    """
    folder = cache / f"models--{model.replace('/', '--')}"
    for reference in (tagged_reference(revision, tag), revision) if tag else (revision,):
        commit = _commit(folder, reference)
        if commit is not None and _has_model(folder / "snapshots" / commit, tag):
            return folder / "snapshots" / commit
    return None


def tagged_reference(revision: str, tag: str) -> str:
    """The name of the reference for one GGUF model of a repository: each may have been fetched at another commit.

    No branch of git can have this name.
    """
    return f"{revision}:{tag}" if tag else revision


def _has_model(snapshot: Path, tag: str) -> bool:
    if not tag and present(snapshot / "config.json"):
        return True
    return any(tag in ("", one.tag) for one in models_of(gguf_names(snapshot)))


def gguf_names(directory: Path) -> list[str]:
    """GGUF files of a directory and of the directories in it, relative to it. Links are followed, but not to directories."""
    found = []
    for where, folders, names in os.walk(directory):
        beside = Path(where).relative_to(directory)
        folders[:] = [one for one in folders if not one.startswith(".")] if beside == Path() else []
        found += [(beside / name).as_posix() for name in names if name.endswith(SUFFIX)]
    return sorted(found)


def directory_of_path(path: str) -> Path:
    """The directory of a checkpoint by an absolute path: of a GGUF file its own."""
    found = Path(path)
    return found.parent if found.suffix == SUFFIX and not found.is_dir() else found


def name_of(directory: Path) -> tuple[str, str | None]:
    """Hub id and commit of a snapshot in a Hub cache; for any other directory its path, and None."""
    found = _SNAPSHOT.search(directory.as_posix())
    if found is None:
        return str(directory), None
    return found["id"].replace("--", "/", 1), found["revision"]


def _directory(path: Path) -> Path:
    if not os.path.isdir(path):
        raise FactError(f"{path}: is not a directory.", do="Give the directory that has config.json.")
    return path


def _commit(folder: Path, revision: str) -> str | None:
    """The commit of a branch or tag, by the cache's reference; or the revision itself, if it is a commit."""
    reference = folder / "refs" / revision
    if present(reference):
        commit = read_start(reference, REF_BYTES).decode("ascii", errors="replace").strip()
        if not _COMMIT.fullmatch(commit):
            raise FactError(
                f"{reference}: contains {shown(commit)}, which is not a commit.",
                means="The cache is damaged.",
                do="Remove that folder and download the model again.",
            )
        return commit
    return revision if _COMMIT.fullmatch(revision) else None
