"""The pieces of the full run, and the record of which tests passed."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from pathlib import Path
from typing import Any

PIECES = ("checks", "units", "labs", "models", "fleets", "sglang", "soak", "pythons")
"""In the order of the full run: what fails soonest first. "checks", "soak" and "pythons" are commands, the others tests."""

_GROUP = re.compile(r"@\w+$")
"""The group that xdist adds to the name of a test whose group runs in one process."""


def piece_of(directory: Path, tests: Path, tiers: Set[str]) -> str:
    """The one piece of the full run to which a test belongs.

    Args:
        directory: of the test's file.
        tests: the root of all tests.
        tiers: names of the test's markers.
    """
    part = directory.relative_to(tests).parts[:1]
    if part == ("tiny_models",):
        return "models"
    if "sglang" in tiers:
        return "sglang"
    if part == ("integration",):
        return "fleets" if tiers & {"fleet", "full", "opt_in"} else "labs"
    return "labs" if part == ("lab",) else "units"


class TestRecord:
    """Plugin of pytest that appends one line of JSON to a file for each test that ended.

    Args:
        file: the record.
        piece: the piece of the full run.
    """

    __test__ = False

    def __init__(self, file: Path, piece: str) -> None:
        self._file, self._piece = file, piece
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called for setup, call and teardown of each test, in the process that controls the others."""
        test = _GROUP.sub("", report.nodeid)
        self._seconds[test] = self._seconds.get(test, 0.0) + report.duration
        if report.failed:
            self._failed.add(test)
        if report.when == "teardown":
            self._write(test, "failed" if test in self._failed else "passed")
            self._failed.discard(test)

    def _write(self, test: str, outcome: str) -> None:
        line = {
            "piece": self._piece,
            "test": test,
            "outcome": outcome,
            "seconds": round(self._seconds.pop(test), 2),
        }
        with self._file.open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
