"""Reads a bundle (`sparkfleet bundle`) of unknown origin: as a stream, within limits, into memory only."""

from __future__ import annotations

import gzip
import json
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.layout import MOST_NODES
from sparkfleet.units import MIB

FOLDER = "sparkfleet-report"
FORMAT = 2
"""Version of the content that can be replayed."""
FILE_BYTES = 64 * MIB
"""Largest file. Bundles of two nodes have less than 1 MiB."""
UNPACKED_BYTES = 512 * MIB
"""Largest content, unpacked: 64 nodes with all their logs."""
PART_BYTES = 32 * MIB
"""Largest part that is kept in memory. All outputs of a node have at most 8 MiB."""
MOST_PARTS = 10_000
MOST_ANSWERS = 500
"""Commands of one node. There are about 45."""
MOST_LINKS = 4 * MOST_NODES
_WORDS, _WORD_CHARACTERS = 100, 64_000


@dataclass(frozen=True)
class CapturedAnswer:
    """A command that was run on a node, with its redacted output."""

    argv: tuple[str, ...]
    exit_code: int
    """From 0 to 255, as a shell has it."""
    stdout: str
    stderr: str
    missing: bool
    """The node has no such program."""
    late: bool
    """It did not end in time."""


@dataclass(frozen=True)
class CapturedNode:
    """A node by its name in the bundle, which is a stand-in of its real one."""

    name: str
    address: str
    user: str
    answers: tuple[CapturedAnswer, ...]

    def output(self, *argv: str) -> str:
        """Output of a command; "" if there is none."""
        return next((one.stdout for one in self.answers if one.argv == argv), "")


@dataclass(frozen=True)
class CapturedLink:
    """A link by its nodes; `rails` has per rail the (netdev, address) of each end."""

    nodes: tuple[str, ...]
    switch: str
    rails: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class CapturedFleet:
    """The part of a bundle that a lab can replay."""

    sparkfleet: str
    """Version of sparkfleet that made it."""
    head: str
    nodes: tuple[CapturedNode, ...]
    links: tuple[CapturedLink, ...]


def read_bundle(path: Path) -> CapturedFleet:
    """Reads the captured fleet of a bundle.

    Raises:
        LabError: the file cannot be read, is no bundle, is one of another version, or exceeds a limit; or a part has a
            path outside the bundle's folder.
    """
    parts = _parts(path)
    versions = _json(path, parts, "versions.json")
    if not isinstance(versions, dict) or "version" not in versions:
        raise _no_bundle(path, "versions.json has no version")
    if versions["version"] != FORMAT:
        raise LabError(
            f"{path} is a bundle of version {_short(versions['version'])}; version {FORMAT} can be replayed.",
            means=f"It was made by sparkfleet {_short(versions.get('sparkfleet', '?'))}.",
            do="Make it again with `sparkfleet bundle` of this version, or replay it with that one.",
        )
    try:
        return _fleet(path, parts, _short(versions.get("sparkfleet", "?")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_bundle(path, f"its inventory or an output has another form ({_short(error)})") from error


def _fleet(path: Path, parts: dict[str, bytes], version: str) -> CapturedFleet:
    inventory = _json(path, parts, "inventory.json")
    names = list(inventory["nodes"])
    if not 1 <= len(names) <= MOST_NODES or len(inventory.get("links", ())) > MOST_LINKS:
        raise LabError(
            f"{path} has {len(names)} nodes and {len(inventory.get('links', ()))} links.",
            means=f"A lab has 1 to {MOST_NODES} nodes and at most {MOST_LINKS} links.",
        )
    nodes = tuple(
        CapturedNode(
            name,
            _text(node.get("address")),
            _text(node.get("user") or ""),
            tuple(_answers(path, parts, f"nodes/{name}/facts.json")),
        )
        for name, node in inventory["nodes"].items()
    )
    links = tuple(map(_link, inventory.get("links", ())))
    return CapturedFleet(version, _text(inventory.get("head", "")), nodes, links)


def _link(given: dict[str, Any]) -> CapturedLink:
    rails = tuple(
        tuple((_text(end["netdev"]), _text(end["address"])) for end in rail) for rail in given["rails"]
    )
    nodes = tuple(map(_text, given["nodes"]))
    if not 1 <= len(nodes) <= 2 or len(rails) > 16 or any(len(rail) != len(nodes) for rail in rails):
        raise ValueError("a link does not join two nodes, or a node and a switch")
    return CapturedLink(nodes, _text(given.get("switch") or ""), rails)


def _answers(path: Path, parts: dict[str, bytes], name: str) -> Iterator[CapturedAnswer]:
    """Answers of a node; none if it did not answer when the bundle was made."""
    if name not in parts:
        return
    found = _json(path, parts, name)
    if not isinstance(found, list) or len(found) > MOST_ANSWERS:
        raise ValueError(f"{name} is no list of at most {MOST_ANSWERS} answers")
    for one in found:
        argv = tuple(map(_text, one["argv"]))
        if not 1 <= len(argv) <= _WORDS or any(len(word) > _WORD_CHARACTERS for word in argv):
            raise ValueError("a command without words, or with too many")
        yield CapturedAnswer(
            argv=argv,
            exit_code=_exit_code(one["exit_code"]),
            stdout=_text(one["stdout"]),
            stderr=_text(one["stderr"]),
            missing=one["missing"] is True,
            late=one["late"] is True,
        )


def _exit_code(given: object) -> int:
    """An exit code as a shell has it: 128 and the signal's number for a command that a signal ended."""
    if given is None:
        return 127
    if isinstance(given, bool) or not isinstance(given, int) or not -64 <= given <= 255:
        raise ValueError("an exit code that is none")
    return given if given >= 0 else 128 - given


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is no text")
    return value


def _parts(path: Path) -> dict[str, bytes]:
    """The parts that a lab needs, by their paths in the bundle."""
    kept: dict[str, bytes] = {}
    try:
        # As a stream: an archive cannot make it seek, and nothing is written.
        with (
            _opened(path) as file,
            _BoundedGzip(path, file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            for count, entry in enumerate(archive):
                name = _name(path, entry, count)
                if name in kept:
                    raise _no_bundle(path, f"it has {_short(name)} twice")
                if _needed(name):
                    kept[name] = _content(path, archive, entry)
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        OSError,
        UnicodeError,
        ValueError,
        OverflowError,
    ) as error:
        raise _no_bundle(path, f"it cannot be unpacked ({_short(error)})") from error
    if "versions.json" not in kept:
        raise _no_bundle(path, f"it has no {FOLDER}/versions.json")
    return kept


def _opened(path: Path) -> IO[bytes]:
    """The file, if it is one, and not a device or a pipe that never ends."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.") from error
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise _no_bundle(path, "it is no regular file")
    if found.st_size > FILE_BYTES:
        file.close()
        raise _too_large(path, f"{found.st_size} bytes", f"{FILE_BYTES // MIB} MiB")
    return file


class _BoundedGzip(gzip.GzipFile):
    """Unpacks a file up to `UNPACKED_BYTES`: a small one may unpack to terabytes."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._path, self._unpacked = path, 0

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, at most 1 MiB. Raises LabError beyond the limit."""
        piece = super().read(MIB if size is None or size < 0 else min(size, MIB))
        self._unpacked += len(piece)
        if self._unpacked > UNPACKED_BYTES:
            raise _too_large(self._path, "more, unpacked", f"{UNPACKED_BYTES // MIB} MiB")
        return piece


def _name(path: Path, entry: tarfile.TarInfo, count: int) -> str:
    """Path of a part below the bundle's folder. Raises LabError if it is none, or no plain file."""
    if count >= MOST_PARTS:
        raise _too_large(path, "more parts", f"{MOST_PARTS}")
    name = PurePosixPath(entry.name)
    inside = name.parts[:1] == (FOLDER,) and len(name.parts) > 1 and ".." not in name.parts
    if not inside or not entry.name.isprintable() or "\\" in entry.name:
        raise LabError(
            f"{path} has a part with the path {_short(entry.name)!r}, which is not below {FOLDER}/.",
            means="`sparkfleet bundle` does not write such a file; nothing of it was used.",
        )
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.issparse():
        raise LabError(
            f"{path} has a part {_short(entry.name)!r} that is a link, a directory or a device.",
            means="`sparkfleet bundle` writes plain files only; nothing of it was used.",
        )
    return "/".join(name.parts[1:])


def _needed(name: str) -> bool:
    words = name.split("/")
    is_facts = len(words) == 3 and words[0] == "nodes" and words[2] == "facts.json"
    return name in ("versions.json", "inventory.json") or is_facts


def _content(path: Path, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    if entry.size > PART_BYTES:
        raise _too_large(path, f"{entry.size} bytes in {_short(entry.name)}", f"{PART_BYTES // MIB} MiB")
    file = archive.extractfile(entry)
    return b"" if file is None else file.read()


def _json(path: Path, parts: dict[str, bytes], name: str) -> Any:
    try:
        return json.loads(parts[name].decode())
    except KeyError:
        raise _no_bundle(path, f"it has no {FOLDER}/{name}") from None
    except (ValueError, RecursionError):
        raise _no_bundle(path, f"{_short(name)} is no JSON") from None


def _no_bundle(path: Path, why: str) -> LabError:
    return LabError(
        f"{path} is no bundle of sparkfleet: {why}.", do="`sparkfleet bundle` makes one of a fleet."
    )


def _too_large(path: Path, has: str, most: str) -> LabError:
    return LabError(
        f"{path} is too large for a bundle: it has {has}; at most {most} are read.",
        means="A bundle of two nodes has less than 1 MiB; nothing of this one was used.",
    )


def _short(value: object) -> str:
    """A value of the bundle as a piece of one line, without characters that a terminal acts on."""
    text = str(value)[:80]
    return "".join(one if one.isprintable() else "?" for one in text)
