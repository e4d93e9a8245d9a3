"""Writes a report as one compressed file, which its owner reads before sending it to anybody."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.bundle.collect import BundleContents, BundlePart

FOLDER = "sparkfleet-report"

_README = """This is a report of a sparkfleet fleet. Nothing was sent: its owner made this file, and decides who gets it.

versions.json, inventory.json, status.json, doctor.json, events.txt, plans/: the fleet as sparkfleet sees it.
nodes/NODE/facts.json: each command that sparkfleet runs on a node, its whole output, and if that was understood.
nodes/NODE/logs/: the ends of the logs of engines, Ray and the controller.

Replaced by stand-ins, the same one everywhere: {replaced}.
A subnet keeps the last number of each address: <subnet-1>.10 and <subnet-1>.11 are neighbours.
Not there: {missing}.
"""


def with_readme(found: BundleContents) -> tuple[BundlePart, ...]:
    """The parts of a report with a description in front."""
    text = _README.format(replaced=replaced_words(found.replaced), missing=_missing(found))
    return (BundlePart("README.txt", text), *found.parts)


def replaced_words(replaced: Mapping[str, int]) -> str:
    """`12 × mac, 3 × secret`."""
    return ", ".join(f"{count} × {kind}" for kind, count in replaced.items()) or "nothing"


def _missing(found: BundleContents) -> str:
    return "; ".join(found.missing) or "nothing"


def write_bundle(path: Path, found: BundleContents) -> int:
    """Writes a report, readable by its owner only. Returns its size in bytes.

    Raises:
        SparkfleetError: the file exists already, or cannot be written.
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for part in with_readme(found):
            content = part.text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{FOLDER}/{part.path}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))
    try:
        with open(path, "xb", opener=_private) as file:  # Path.open takes no opener
            file.write(data.getvalue())
    except FileExistsError as error:
        raise SparkfleetError(f"{path} exists already.", do="`--output FILE` writes another one.") from error
    except OSError as error:
        with contextlib.suppress(OSError):  # a name that is too long is none of a file
            if path.is_file():  # a part of it
                path.unlink()
        raise SparkfleetError(
            f"{path} cannot be written: {error.strerror}.", do="`--output FILE` writes another one."
        ) from error
    return len(data.getvalue())


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
