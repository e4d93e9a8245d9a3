"""Files given to `sparkfleet accuracy`, with clear errors for those that cannot be read."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkfleet.errors import SpecError

NOTHING = "Nothing is predicted."


@contextmanager
def reading(path: Path, expected: str, do: str) -> Iterator[None]:
    """Turns every error of reading `path` into a SpecError.

    Args:
        path: the file.
        expected: the expected content: "a CSV file of measurements".
        do: the remedy.

    Raises:
        SpecError: the file cannot be read.
    """
    try:
        yield
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise SpecError(f"{path}: {_fault(error)}. Expected {expected}.", means=NOTHING, do=do) from None


def read_table(path: Path, expected: str, do: str) -> list[dict[str, str]]:
    """Rows of a CSV file by the stripped names of its header. Arguments and errors as of `reading`.

    A row with more cells than the header has a comma without quotes, behind which each figure is in the wrong column.
    """
    with reading(path, expected, do), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)  # a quote without its end takes all rows behind it
        return [_named(row, reader.line_num) for row in reader]


def _named(row: Mapping[str | None, Any], line: int) -> dict[str, str]:
    if None in row:
        raise ValueError(f"line {line} has more cells than the header (a comma without quotes?)")
    return {name.strip(): cell or "" for name, cell in row.items() if name}


def _fault(error: Exception) -> str:
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
    quotes = " (each quote needs its end)" if isinstance(error, csv.Error) else ""
    return f"cannot be read: {error}{quotes}"
