"""The order in which pytest takes the paths of its command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def in_order_of_the_tree(paths: Iterable[str]) -> list[str]:
    """Paths of a command line, those of a directory side by side and its files before its directories.

    pytest 9.1 loses the fixtures of a directory's conftest.py for what is named behind a file of a directory above it: those
    that every test there gets (`autouse`) in silence (pytest-dev/pytest#14964).
    """

    def place(argument: str) -> list[tuple[bool, str]]:
        path = Path(argument.partition("::")[0]).absolute()
        *above, name = path.parts
        return [*((True, part) for part in above), (not path.is_file(), name)]

    return sorted(paths, key=place)
