"""Prints the metadata of checkpoints on a node, without their weights. Sent as text to the node's python3; stdlib only.

Reads a request on standard input (JSON): `wanted`, a list of `{"directory": …}` and `{"id": …, "revision": …, "tag": …}`; a
directory may be the path of a GGUF file, and the tag is "" or that of a GGUF model. `whole`,
files that are printed completely unless they exceed the given bytes; `begun`, files of which the given number of first
bytes is printed; `header_bytes`, the longest header of a safetensors file; `suffixes` of files whose sizes are printed.

Prints JSON lines. `at` is an index into `wanted`; a checkpoint that is not on the node gets no line:
`{"at": 0, "directory": …, "commit": …}`, then for each file `{"at": 0, "name": …, "size": …, "start": …}`, in which `start`
is its first bytes, by zlib, in base64; or `{"at": 0, "error": …}`, the reason why it cannot be read. Last `{"end": true}`.

Of GGUF models the headers of one are printed, and the sizes of all: which it is follows from the tag or the file, or it is
the only one. Without any of these the sizes show what there is to choose.

It runs on Python 3.8 and later, because the node's python3 may be old. The texts of `gguf_names` and `gguf_scan` come first.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import sys
import zlib
from typing import Any

from sparkfleet.checkpoints.gguf.gguf_scan import DamagedHeader, HeaderScan
from sparkfleet.specs.gguf_names import SUFFIX, models_of, siblings, tower_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NOT_LOADED = ("adapter_", "consolidated")
REF_BYTES = 256


class UnreadableCheckpoint(Exception):
    """A file exists, but cannot be read."""


def main() -> None:
    """Prints the metadata of each requested checkpoint."""
    order = json.load(sys.stdin)
    for at, wanted in enumerate(order["wanted"]):
        try:
            _look(order, at, wanted)
        except UnreadableCheckpoint as error:
            _print(at=at, error=str(error))
    _print(end=True)


def _look(order: dict[str, Any], at: int, wanted: dict[str, str]) -> None:
    directory, commit, file, tag = wanted.get("directory", ""), "", "", wanted.get("tag", "")
    if directory.endswith(SUFFIX) and not os.path.isdir(directory):
        directory, file = os.path.split(directory)
        if not os.path.exists(os.path.join(directory, file)):
            return
    if not directory:
        directory, commit = _snapshot(wanted["id"], wanted["revision"], tag)
    if not directory or not os.path.isdir(directory):
        return
    _print(at=at, directory=directory, commit=commit)
    index = None
    for name, limit in list(order["whole"].items()) + list(order["begun"].items()):
        found = _read(os.path.join(directory, name), limit, name in order["whole"])
        if found is not None:
            index = found[1] if name == INDEX else index
            _print_file(at, name, *found)
    gguf = _gguf_names(directory)
    others = [name for name in os.listdir(directory) if name.endswith(".safetensors")]
    if gguf and (file or tag or all(name.startswith("adapter_") for name in others)):
        _look_at_gguf(at, directory, gguf, file, tag)
    else:
        _look_at_weights(order, at, directory, index)


def _look_at_gguf(at: int, directory: str, names: list[str], file: str, tag: str) -> None:
    chosen = gguf_files(names, file, tag)
    for name in names:
        path = os.path.join(directory, name)
        found = _gguf_header(path) if name in chosen else _unread(path)
        if found is not None:
            _print_file(at, name, *found)
        elif name in chosen:
            raise UnreadableCheckpoint(path + ": is a link to a file that does not exist")


def gguf_files(names: list[str], file: str, tag: str) -> list[str]:
    """Files whose headers are read: of the model with this file or tag, or of the only one; with the tower."""
    found = [siblings(file, names)] if file else [one for one in models_of(names) if tag in ("", one.tag)]
    if len(found) != 1:
        return []
    return [*found[0].files, *filter(None, [tower_of(names, found[0].files[0])])]


def _gguf_names(directory: str) -> list[str]:
    """GGUF files of a directory and of those in it."""
    found = []
    try:
        for place in os.scandir(directory):
            inner = (
                os.scandir(place.path) if place.is_dir(follow_symlinks=False) and place.name[0] != "." else ()
            )
            found += [place.name] + [place.name + "/" + one.name for one in inner]
    except OSError as error:
        raise UnreadableCheckpoint(_why(directory, error)) from error
    return sorted(name for name in found if name.endswith(SUFFIX) and name.isprintable())


def _gguf_header(path: str) -> tuple[int, bytes] | None:
    """Size and header of a GGUF file; of a damaged one what was read, which the reader of headers reports."""
    fd, size = _open(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        scan = HeaderScan(lambda count: _bytes(file, count, path))
        try:
            return size, bytes(scan.buffer[: scan.run().length])
        except DamagedHeader:
            return size, bytes(scan.buffer)


def _look_at_weights(order: dict[str, Any], at: int, directory: str, index: bytes | None) -> None:
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise UnreadableCheckpoint(_why(directory, error)) from error
    names = [name for name in names if name.endswith(tuple(order["suffixes"])) and name.isprintable()]
    chosen = set(loaded([name for name in names if name.endswith(".safetensors")], index))
    for name in names:
        path = os.path.join(directory, name)
        found = _header(path, order["header_bytes"]) if name in chosen else _unread(path)
        if found is not None:
            _print_file(at, name, *found)
        elif name in chosen and index is None:
            raise UnreadableCheckpoint(path + ": is a link to a file that does not exist")


def loaded(names: list[str], index: bytes | None) -> list[str]:
    """Files whose headers are read: those of the index; without one, a single file, or all but copies and adapters."""
    if index is not None:
        try:
            entries = set(json.loads(index)["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []  # the reader of the outline reports the damage
        return [name for name in names if name in entries]
    if SINGLE in names:
        return [SINGLE]
    return [name for name in names if not name.startswith(NOT_LOADED)]


def _snapshot(name: str, revision: str, tag: str) -> tuple[str, str]:
    """Path and commit of a model in the Hub's cache; ("", "") if it is not there."""
    folder = os.path.join(_hub_cache(), "models--" + name.replace("/", "--"))
    for reference in [revision + ":" + tag, revision] if tag else [revision]:
        snapshot, commit = _referenced(folder, reference)
        if snapshot and _has_model(snapshot, tag):
            return snapshot, commit
    return "", ""


def _has_model(snapshot: str, tag: str) -> bool:
    if not tag and os.path.exists(os.path.join(snapshot, "config.json")):
        return True
    return os.path.isdir(snapshot) and any(tag in ("", one.tag) for one in models_of(_gguf_names(snapshot)))


def _referenced(folder: str, revision: str) -> tuple[str, str]:
    """Path and commit of a snapshot by a reference; ("", "") if there is no such reference."""
    found = _read(os.path.join(folder, "refs", *revision.split("/")), REF_BYTES, False)
    commit = revision if found is None else found[1].decode("ascii", "replace").strip()
    if not re.match(r"[0-9a-f]{7,64}\Z", commit):
        if found is None:
            return "", ""
        raise UnreadableCheckpoint(os.path.join(folder, "refs", revision) + ": contains no commit")
    return os.path.join(folder, "snapshots", commit), commit


def _hub_cache() -> str:
    environment = os.environ
    if environment.get("HF_HUB_CACHE"):
        return _expanded(environment["HF_HUB_CACHE"])
    if environment.get("HF_HOME"):
        return os.path.join(_expanded(environment["HF_HOME"]), "hub")
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return os.path.join(_expanded(base), "huggingface", "hub")


def _expanded(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))


def _read(path: str, limit: int, whole: bool) -> tuple[int, bytes] | None:
    """Size and first bytes of a file; no bytes if it has to be `whole` and is longer. None if there is no file."""
    fd, size = _open(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return size, b"" if whole and size > limit else _bytes(file, limit, path)


def _unread(path: str) -> tuple[int, bytes] | None:
    """Size of a file that is not loaded; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_size, b"") if stat.S_ISREG(found.st_mode) else None


def _header(path: str, limit: int) -> tuple[int, bytes] | None:
    """Size and header of a safetensors file; only the length field if the header cannot have that length."""
    fd, size = _open(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        prefix = _bytes(file, 8, path)
        length = int.from_bytes(prefix, "little")
        fits = len(prefix) == 8 and length <= limit and 8 + length <= size
        return size, prefix + (_bytes(file, length, path) if fits else b"")


def _open(path: str) -> tuple[int | None, int]:
    """Opens a regular file, and returns its size; links are followed, because the Hub's cache consists of them."""
    try:
        # O_NONBLOCK: opening a pipe would otherwise wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None, 0
    except (OSError, ValueError) as error:
        raise UnreadableCheckpoint(_why(path, error)) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise UnreadableCheckpoint(path + ": is not a regular file")
    return fd, found.st_size


def _bytes(file: Any, limit: int, path: str) -> bytes:
    try:
        content: bytes = file.read(limit)
    except OSError as error:
        raise UnreadableCheckpoint(_why(path, error)) from error
    return content


def _why(path: str, error: Exception) -> str:
    return path + ": cannot be read: " + (getattr(error, "strerror", None) or str(error))


def _print_file(at: int, name: str, size: int, start: bytes) -> None:
    _print(at=at, name=name, size=size, start=base64.b64encode(zlib.compress(start)).decode())


def _print(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
