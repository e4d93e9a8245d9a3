"""The files that `sparkfleet accuracy` is given: what is wrong where one cannot be read."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkfleet.errors import SpecError

NOTHING = "Nothing is predicted."


@contextmanager
def reading(path: Path, expected: str, do: str) -> Iterator[None]:
    """Whatever reading `path` raises as one error.

    Args:
        path: the file.
        expected: what it should be: "a CSV file of measurements".
        do: what to give instead.

    Raises:
        SpecError: what happened, in place of what the operating system or a parser says.
    """
    try:
        yield
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise SpecError(f"{path}: {_said(error)}. Expected {expected}.", means=NOTHING, do=do) from None


def read_table(path: Path, expected: str, do: str) -> list[dict[str, str]]:
    """Rows of a CSV file by the names of its header, blanks around those left out. Arguments and errors as of `reading`."""
    with reading(path, expected, do), path.open(newline="", encoding="utf-8-sig") as file:
        return [{k.strip(): v or "" for k, v in row.items() if k} for row in csv.DictReader(file)]


def _said(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "is a directory"
        case OSError():
            return f"cannot be read: {error.strerror}"
        case UnicodeDecodeError():
            return "is not text in UTF-8"
        case RecursionError():
            return "is nested too deeply"
    return f"is something else: {error}"
