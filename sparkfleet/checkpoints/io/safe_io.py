"""Reads untrusted files: regular files only, up to a size limit, strict JSON."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from sparkfleet.errors import FactError

SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """A value from a file, fit for a message: one line, printable ASCII, short."""
    text = ascii(value[: SHOWN_CHARACTERS * 2] if isinstance(value, str) else _plain(value))
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _plain(value: object) -> object:
    # Printing a huge int or a nested container can cost more than reading the file.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} entries"
    if isinstance(value, list):
        return f"a list of {len(value)} entries"
    return value


def present(path: Path) -> bool:
    """True if there is something at `path`.

    Raises:
        FactError: the path cannot be checked: a directory may not be entered, or the name is not valid.
    """
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def size_of(path: Path) -> int:
    """Bytes of a file. Raises FactError if they cannot be read."""
    try:
        return path.stat().st_size
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file to read; links are followed, because the Hub's cache consists of them.

    Raises:
        FactError: it is missing, unreadable, or a device, pipe, socket or directory.
    """
    try:
        # O_NONBLOCK: opening a pipe would otherwise wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FactError(
            f"{path}: is not a regular file.", means="A checkpoint consists of regular files only."
        )
    return os.fdopen(descriptor, "rb")


def read_start(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a regular file."""
    with open_regular(path) as file:
        return _read(file, path, limit)


def read_json_object(path: Path, limit: int) -> Mapping[str, object]:
    """Reads a JSON file whose outermost value is an object.

    Raises:
        FactError: not a regular file, longer than `limit` bytes, not JSON, or not an object.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FactError(
                f"{path}: {size} bytes; at most {limit} are expected here.",
                means="It is not the file that its name promises.",
                do="Download the checkpoint again.",
            )
        content = _read(file, path, limit)
    return parse_json_object(content, str(path))


def parse_json_object(content: bytes, where: str) -> Mapping[str, object]:
    """`content` as a JSON object; `where` names it in messages.

    Raises:
        FactError: it is not JSON, is nested too deeply, or is not an object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise FactError(
            f"{where}: is not JSON: {shown(reason)}.",
            means="The file is truncated, or not the file that its name promises.",
            do="Download the checkpoint again.",
        ) from error
    if not isinstance(value, dict):
        raise FactError(
            f"{where}: contains {shown(value)}, not a JSON object.", do="Download the checkpoint again."
        )
    return value


def _read(file: BinaryIO, path: Path, limit: int) -> bytes:
    try:
        return file.read(limit)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> FactError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return FactError(
        f"{path}: cannot be read: {reason}.",
        do="Check that the file exists and may be read; if it is damaged, download the checkpoint again.",
    )
