"""Reads the outline of a checkpoint on a node: every file that its facts come from, without the weights.

`remote_metadata_program.py` runs on the node and prints the outline. It is written here to a directory in which weight
files are sparse after their headers, so that one reader serves checkpoints on this machine and on nodes. A node's output
is untrusted input: names, sizes and lengths are bounded before anything is written.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field, ValidationError

from sparkfleet.checkpoints.arch.other_tasks import SENTENCE_FILES
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.checkpoints.gguf.gguf_scan import MOST_HEADER_BYTES
from sparkfleet.checkpoints.io.checkpoint_files import (
    ADAPTER,
    CONFIG_BYTES,
    INDEX,
    INDEX_BYTES,
    MOST_SHARDS,
    OLD_QUANTIZATION,
    OTHER_WEIGHTS,
    PIPELINE,
)
from sparkfleet.checkpoints.io.hub_cache import check_name, directory_of_path, name_of
from sparkfleet.checkpoints.io.licenses import LICENSE_FILES, READ_LIMIT
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.checkpoints.io.safetensors_header import HEADER_LIMIT
from sparkfleet.errors import FactError
from sparkfleet.hostfacts.fact import text
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.specs.model_name import MAIN, ModelName, model_name
from sparkfleet.values import Value

WHOLE: Mapping[str, int] = {
    "config.json": CONFIG_BYTES,
    "generation_config.json": CONFIG_BYTES,
    "hf_quant_config.json": CONFIG_BYTES,
    INDEX: INDEX_BYTES,
    **dict.fromkeys((PIPELINE, ADAPTER, *OLD_QUANTIZATION), READ_LIMIT),
}
"""Files that are needed completely, with their limits in bytes."""
BEGUN: Mapping[str, int] = dict.fromkeys(("README.md", *LICENSE_FILES, *SENTENCE_FILES), READ_LIMIT)
"""Files of which the first bytes are enough, with their number."""
SUFFIXES = tuple(sorted({".safetensors", *(f".{pattern.rpartition('.')[2]}" for pattern in OTHER_WEIGHTS)}))
"""Suffixes of weight files, in the supported format and in the others."""

MOST_ANSWER_BYTES = 64 << 20
"""Limit of a node's whole answer. Index and headers of Kimi-K2 in NVFP4 (400,000 tensors) are a third of it."""
MOST_UNPACKED_BYTES = 512 << 20
"""Limit of the bytes written for one checkpoint, without its weights, which are not written."""
MOST_FILES = MOST_SHARDS + 1000
MOST_GGUF_DEPTH = 2
MOST_FILE_BYTES = 1 << 42
"""Limit of one file: a Spark's disk has 4 TB."""
LONGEST_NAME = 255
LONGEST_PATH = 4096


class MetadataRequest(Value):
    """Metadata request to a node: a path, or its Hub cache's copy of an id at a revision."""

    directory: str = ""
    """Of a checkpoint, or the path of a GGUF file."""
    id: str = ""
    revision: str = "main"
    tag: str = ""
    """Of one GGUF model of several."""

    @classmethod
    def of(cls, model: str) -> MetadataRequest:
        """The request for a deployment's model. Raises FactError if it is neither a path nor a Hub id."""
        if model.startswith("/"):
            return cls(directory=model)
        name = model_name(model)
        check_name(name.base, name.revision or MAIN, name.tag)
        return cls(id=name.base, revision=name.revision or MAIN, tag=name.tag)

    @property
    def name(self) -> str | None:
        """The checkpoint's id with its tag; None for a path."""
        return ModelName(self.id, tag=self.tag).tagged if self.id else None


class OutlinedFile(Value):
    """One file of a checkpoint: its size in bytes, and its first bytes, packed by zlib."""

    name: str
    size: int
    start: bytes


@dataclass(slots=True)
class Outline:
    """Files of a checkpoint on a node.

    Attributes:
        directory: its path on the node.
        commit: of the Hub; "" for a directory.
        files: those that its facts come from.
        error: the reason why it cannot be read; "" if it can.
    """

    directory: str = ""
    commit: str = ""
    files: list[OutlinedFile] = field(default_factory=list)
    error: str = ""


class _Line(Value):
    """One line of the program."""

    at: Annotated[int, Field(ge=0)] = 0
    directory: Annotated[str, Field(max_length=LONGEST_PATH)] = ""
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{7,64})?$")] = ""
    name: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    size: Annotated[int, Field(ge=0, le=MOST_FILE_BYTES)] = 0
    start: str = ""
    error: str = ""
    end: bool = False


def order(wanted: Sequence[MetadataRequest]) -> bytes:
    """The request that the program reads on standard input."""
    return json.dumps(
        {
            "wanted": [one.model_dump() for one in wanted],
            "whole": dict(WHOLE),
            "begun": dict(BEGUN),
            "header_bytes": HEADER_LIMIT,
            "suffixes": SUFFIXES,
        }
    ).encode()


_NOT_SENT = ("from __future__ import annotations", "from sparkfleet.")


@cache
def program() -> tuple[str, ...]:
    """The command that prints outlines, with the node's own Python."""
    places = {
        "sparkfleet.specs": "gguf_names.py",
        "sparkfleet.checkpoints.gguf": "gguf_scan.py",
        "sparkfleet.checkpoints": "remote_metadata_program.py",
    }
    sources = ((files(package) / name).read_text(encoding="utf-8") for package, name in places.items())
    # One text, without what each imports of the others.
    lines = (line for source in sources for line in source.splitlines() if not line.startswith(_NOT_SENT))
    return ("python3", "-I", "-S", "-c", "\n".join((_NOT_SENT[0], *lines, "")))


class OutlineParser:
    """Parses the program's output, piece by piece.

    Args:
        wanted: the checkpoints that were requested.
    """

    def __init__(self, wanted: Sequence[MetadataRequest]) -> None:
        self._found: list[Outline | None] = [None] * len(wanted)
        self._rest: list[bytes] = []
        self._received = 0
        self._is_over = False

    def feed(self, piece: bytes) -> None:
        """Takes a piece of output. Raises FactError for output that the program cannot have printed."""
        self._received += len(piece)
        if self._received > MOST_ANSWER_BYTES:
            raise FactError(
                f"the headers and indexes of the checkpoints have more than {MOST_ANSWER_BYTES >> 20} MiB.",
                means="They are damaged, or too many are planned at once.",
                do="Check the size of the *.index.json files on the node; plan fewer deployments at a time.",
            )
        first, *further = piece.split(b"\n")
        self._rest.append(first)
        for begun in further:
            self._take(b"".join(self._rest))
            self._rest = [begun]

    def outlines(self) -> tuple[Outline | None, ...] | None:
        """The outline of each requested checkpoint, or None; None in place of all if the program did not finish."""
        return tuple(self._found) if self._is_over else None

    def _take(self, content: bytes) -> None:
        try:
            line = _Line.model_validate_json(content)
        except ValidationError:
            raise _unexpected(content) from None
        if self._is_over or line.at >= len(self._found):
            raise _unexpected(content)
        if line.end:
            self._is_over = True
        elif line.error:
            self._found[line.at] = Outline(error=text(line.error))
        elif line.name:
            self._add(line, content)
        elif self._found[line.at] is None and line.directory:
            self._found[line.at] = Outline(directory=text(line.directory, LONGEST_PATH), commit=line.commit)
        else:
            raise _unexpected(content)

    def _add(self, line: _Line, content: bytes) -> None:
        outline = self._found[line.at]
        if outline is None or not _is_ours(line.name) or len(outline.files) >= MOST_FILES:
            raise _unexpected(content)
        try:
            start = b64decode(line.start, validate=True)
        except ValueError:
            raise _unexpected(content) from None
        outline.files.append(OutlinedFile(name=line.name, size=line.size, start=start))


def read_outline(outline: Outline, wanted: MetadataRequest, node: str) -> Checkpoint:
    """Reads the facts of a checkpoint on a node; its `path` is the one on the node.

    Args:
        outline: the node's answer.
        wanted: the request.
        node: its name, for messages.

    Raises:
        FactError: the checkpoint, or its outline, is damaged, hostile or of a kind that is not supported.
    """
    if outline.error:
        raise FactError(
            f"{node}: {outline.error}.", do="Check on the node that the file is complete and may be read."
        )
    where = wanted.directory or outline.directory
    inside = directory_of_path(where)
    found, revision = name_of(inside)
    name, revision = (wanted.name, outline.commit) if wanted.name else (found, revision)
    if not wanted.id and found.startswith("/"):
        name = where
    assert name is not None
    file = "" if inside == Path(where) else Path(where).name
    try:
        with TemporaryDirectory(prefix="sparkfleet-") as place:
            facts = _read_in(Path(place), file, outline, name, f"{node}:{inside}")
    except OSError as error:
        raise FactError(
            f"{node}:{where}: no temporary directory can be made on this machine: {error.strerror}.",
            means="The checkpoint's metadata has to be written there to be read.",
            do="Free space in the temporary directory, or set TMPDIR to another one.",
        ) from error
    path = None if facts.path is None else inside
    return facts.model_copy(update={"revision": revision, "path": path})


def _read_in(place: Path, file: str, outline: Outline, name: str, there: str) -> Checkpoint:
    """Reads the facts, of `file` if one is given, through a temporary directory; errors have the node's in its place."""
    try:
        write_outline(outline, place)
        return read_checkpoint(place / file, id=name)
    except FactError as error:
        what, means, do = (part.replace(str(place), there) for part in (error.what, error.means, error.do))
        raise FactError(what, means=means, do=do) from error


def write_outline(outline: Outline, directory: Path) -> None:
    """Writes the files of an outline: their first bytes, then a hole up to their true size.

    Raises:
        FactError: the first bytes are more than the file or its kind may have, or they cannot be written here.
    """
    room = MOST_UNPACKED_BYTES
    for file in outline.files:
        path = directory / file.name
        start = _unpacked(file, path, room)
        room -= len(start)
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("xb") as written:
                written.write(start)
                written.truncate(file.size)
        except OSError as error:
            raise FactError(
                f"{path}: its first bytes cannot be written on this machine: {error.strerror}.",
                means="The checkpoint's metadata cannot be read without them.",
                do="Free space in the temporary directory, or set TMPDIR to another one.",
            ) from error


def _unpacked(file: OutlinedFile, path: Path, room: int) -> bytes:
    most = min(_most(file.name), file.size, room)
    unpacker = zlib.decompressobj()
    try:
        start = unpacker.decompress(file.start, most + 1)
    except zlib.error:
        start = b""
    if len(start) > most or not unpacker.eof or unpacker.unused_data:
        raise FactError(
            f"{path}: the node's copy of its first bytes is damaged, or longer than {most} bytes.",
            means="The node's answer was discarded.",
            do="Check the file on the node, and which `python3` is there: type -a python3",
        )
    return start


def _most(name: str) -> int:
    """Limit of the bytes that are read of a file."""
    weights = MOST_HEADER_BYTES if name.endswith(SUFFIX) else 8 + HEADER_LIMIT
    return WHOLE.get(name) or BEGUN.get(name) or weights


def _is_ours(name: str) -> bool:
    """True if a file of this name holds metadata and is in the directory itself, or is a GGUF file one directory below."""
    plain = "/" not in name and "\\" not in name and name.isprintable()
    return (plain and (name in WHOLE or name in BEGUN or name.endswith(SUFFIXES))) or is_gguf_path(name)


def is_gguf_path(name: str) -> bool:
    """True for the relative path of a GGUF file in a checkpoint's directory, or one directory below."""
    parts = name.split("/")
    safe = all(
        part.isprintable() and "\\" not in part and not part.startswith(".") and part for part in parts
    )
    return safe and len(parts) <= MOST_GGUF_DEPTH and name.endswith(SUFFIX)


def _unexpected(content: bytes) -> FactError:
    return FactError(
        f"reading checkpoints: the node printed {shown(content[:200].decode(errors='replace'))}.",
        means="This is not the expected format, so the node's checkpoints count as unknown.",
        do="Check which `python3` is on the node: type -a python3",
    )
