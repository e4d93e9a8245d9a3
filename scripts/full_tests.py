"""Runs the pieces of `scripts/test-full`, and keeps a record of what passed on the present files.

The record is `.test-full/TREE/`, TREE being git's hash of all files as they are now: a changed file makes another tree, on
which nothing has passed yet, but for live tests if the file is another test's. Tests are assigned to pieces by
`tests/support/full_record.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest")
PIECES: Mapping[str, tuple[str, ...]] = {
    "checks": ("scripts/check",),
    "units": (*PYTEST, "-n", "2", "--dist", "loadgroup"),
    "labs": (*PYTEST, "-n", "2", "--dist", "loadfile", "tests/integration", "tests/lab"),
    # Models are trained and measured with several threads, and engines are sensitive to load: one test after the other.
    "models": (*PYTEST, "--real", "tests/tiny_models"),
    # With the production timeouts a fleet mostly waits; engines that three start at once delay each other (decision 103).
    "fleets": (*PYTEST, "-n", "2", "--dist", "loadfile", "--real", "tests/integration"),
    "sglang": (*PYTEST, "--real", "tests/integration/test_sglang.py", "tests/engines/test_real_parsers.py"),
    "soak": ("scripts/soak",),
    "pythons": ("scripts/test-pythons",),
}
"""Commands of the pieces; those of pytest end with the paths of their tests."""
LIVE = ("labs", "models", "fleets", "sglang")
"""Pieces whose tests run parts of the product and read no other test: a changed test changes nothing for them."""
RUNNER = "scripts/full_tests.py"
COMMANDS = ("checks", "soak", "pythons")
"""Pieces that are one command each, without tests."""
NOTHING_COLLECTED = 5
"""Exit code of pytest if no test is left."""
PASSED, FAILED = "passed", "failed"


class Outcome(NamedTuple):
    """The last result of one test."""

    piece: str
    outcome: str
    seconds: float


class Record:
    """Results of one tree.

    Args:
        directory: `.test-full/TREE`, made if it does not exist.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "results.jsonl"
        self._tests = directory / "tests.json"
        self.left_out = directory / "left-out"

    def outcomes(self) -> dict[str, Outcome]:
        """The last result of each test that ran."""
        if not self.file.exists():
            return {}
        lines = (json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines())
        return {line["test"]: Outcome(line["piece"], line["outcome"], line["seconds"]) for line in lines}

    def add(self, piece: str, test: str, outcome: str, seconds: float) -> None:
        """One more result."""
        line = {"piece": piece, "test": test, "outcome": outcome, "seconds": round(seconds, 2)}
        with self.file.open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")

    def take_over(self, tree: str, other: Path) -> int:
        """Take over what passed in the live pieces on another tree, if nothing but other tests' files differs.

        Args:
            tree: hash of the present files.
            other: the record of another tree, named by its hash.

        Returns:
            The number of results that were taken over.
        """
        changed = _changed_files(other.name, tree)
        if changed is None or any(not _is_test(file) and file != RUNNER for file in changed):
            return 0
        here = self.outcomes()
        taken = {
            test: one
            for test, one in Record(other).outcomes().items()
            if one.piece in LIVE and one.outcome == PASSED and test not in here
            if test.partition("::")[0] not in changed
        }
        for test, one in taken.items():
            self.add(one.piece, test, one.outcome, one.seconds)
        return len(taken)

    def tests(self) -> dict[str, str]:
        """The piece of each test and command of the full run; collected once a tree."""
        if not self._tests.exists():
            argv = [*PYTEST, "--collect-only", "-qq", "--write-pieces", str(self._tests)]
            done = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
            if done.returncode:
                self._tests.unlink(missing_ok=True)
                sys.exit(f"The tests cannot be collected:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        found: dict[str, str] = json.loads(self._tests.read_text(encoding="utf-8"))
        return {**found, **{PIECES[piece][0]: piece for piece in COMMANDS}}


def tree_hash(root: Path = ROOT) -> str:
    """Hash of all files that are not ignored, as they are now, committed or not."""

    def git(*words: str, index: str) -> str:
        env = {**os.environ, "GIT_INDEX_FILE": index}
        done = subprocess.run(["git", *words], cwd=root, env=env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    with tempfile.TemporaryDirectory() as directory:
        index = f"{directory}/index"
        git("read-tree", "HEAD", index=index)
        git("add", "--all", index=index)
        return git("write-tree", index=index)[:16]


def _changed_files(tree: str, other: str) -> list[str] | None:
    """Files that differ between two trees; None if git no longer has one of them."""
    argv = ["git", "diff-tree", "-r", "--name-only", "--no-renames", tree, other]
    done = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def _is_test(file: str) -> bool:
    """True for a module of tests, which no other module imports; not for what tests share."""
    return file.startswith("tests/") and Path(file).name.startswith("test_") and file.endswith(".py")


def run_command(piece: str, options: Sequence[str], record: Record) -> bool:
    """Run a piece that is one command."""
    argv = (*PIECES[piece], *options)
    began = time.monotonic()
    passed = subprocess.run(argv, cwd=ROOT, check=False).returncode == 0
    record.add(piece, argv[0], PASSED if passed else FAILED, time.monotonic() - began)
    return passed


def run_tests(piece: str, words: Sequence[str], record: Record, left_out: Sequence[str]) -> bool:
    """Run the tests of a piece.

    Args:
        piece: its name.
        words: paths instead of the piece's own, and options of pytest.
        record: gets each test's result.
        left_out: tests that are not run.
    """
    record.left_out.write_text("\n".join(left_out), encoding="utf-8")
    narrowed = any(not word.startswith("-") for word in words)
    command = [word for word in PIECES[piece] if not (narrowed and word.startswith("tests/"))]
    argv = [*command, "--no-skips", "--durations=20", f"--piece={piece}", f"--record={record.file}"]
    done = subprocess.run([*argv, f"--leave-out={record.left_out}", *words], cwd=ROOT, check=False)
    return done.returncode == 0 or (done.returncode == NOTHING_COLLECTED and (narrowed or bool(left_out)))


def summary(
    tree: str, tests: Mapping[str, str], outcomes: Mapping[str, Outcome], pieces: Sequence[str]
) -> Iterator[str]:
    """The table of pieces, the slowest files, failed tests, and a last line with the counts."""
    yield f"{'piece':8} {'passed':>7} {'failed':>7} {'never ran':>10} {'seconds':>8}"
    missing: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for piece in PIECES:
        results = [outcomes.get(test) for test, of in tests.items() if of == piece]
        counts = Counter(one.outcome for one in results if one)
        missing[piece] = results.count(None)
        total += counts
        seconds = sum(one.seconds for one in results if one)
        yield f"{piece:8} {counts[PASSED]:7} {counts[FAILED]:7} {missing[piece]:10} {seconds:8.0f}"
    yield from _slowest(outcomes, pieces)
    yield from (f"failed: {test}" for test, one in outcomes.items() if one.outcome == FAILED)
    never = ", ".join(f"{piece} {count}" for piece, count in missing.items() if count)
    left = f"{sum(missing.values())} never ran ({never})" if never else "0 never ran"
    yield f"tree {tree}: {total[PASSED]} of {len(tests)} passed, {total[FAILED]} failed, {left}"


def _slowest(outcomes: Mapping[str, Outcome], pieces: Sequence[str], most: int = 12) -> Iterator[str]:
    files: Counter[str] = Counter()
    for test, one in outcomes.items():
        if one.piece in pieces:
            files[test.partition("::")[0]] += round(one.seconds)
    yield "slowest files: " + ", ".join(f"{name} {seconds} s" for name, seconds in files.most_common(most))


def _options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="scripts/test-full", description="Other arguments are paths and options for pytest."
    )
    parser.add_argument(
        "--pieces", help=f"of {','.join(PIECES)}; default: all, with arguments for pytest all tests"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out what passed on exactly these files; in labs, models, fleets and sglang also on files that differ"
        " in other tests alone",
    )
    parser.add_argument("--soak-minutes", type=float, default=30.0, metavar="N", help="default: %(default)s")
    options, words = parser.parse_known_args(argv)
    chosen = [piece for piece in PIECES if not (words and piece in COMMANDS)]
    options.pieces = options.pieces.split(",") if options.pieces else chosen
    if unknown := set(options.pieces) - set(PIECES):
        parser.error(f"no such piece: {', '.join(sorted(unknown))}; there are {', '.join(PIECES)}")
    return options, words


def main(argv: Sequence[str] | None = None) -> int:
    """0 if everything that was chosen has passed."""
    options, words = _options(argv)
    tree = tree_hash()
    record = Record(ROOT / ".test-full" / tree)
    if options.resume:
        for other in sorted((ROOT / ".test-full").iterdir()):
            if taken := record.take_over(tree, other):
                print(
                    f"{taken} tests have passed on tree {other.name}, which differs in other tests alone",
                    flush=True,
                )
    tests = record.tests()
    good = True
    for piece in (piece for piece in PIECES if piece in options.pieces):
        done = {test for test, one in record.outcomes().items() if one.outcome == PASSED}
        left_out = sorted(test for test in done if tests.get(test) == piece) if options.resume else []
        if options.resume and done.issuperset(test for test, of in tests.items() if of == piece):
            print(f"{piece}: has passed on tree {tree}", flush=True)
        elif piece in COMMANDS:
            more = ("--minutes", str(options.soak_minutes)) if piece == "soak" else ()
            good &= run_command(piece, more, record)
        else:
            good &= run_tests(piece, words, record, left_out)
    print("\n".join(summary(tree, tests, record.outcomes(), options.pieces)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
