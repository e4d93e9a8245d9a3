"""The full run: each test belongs to one piece, and what passed on the same files is known."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from full_record import PIECES, TestRecord, piece_of

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """`scripts/full_tests.py` as a module."""
    spec = importlib.util.spec_from_file_location("full_tests", ROOT / "scripts" / "full_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("directory", "tiers", "piece"),
    [
        ("engines", set(), "units"),
        ("engines", {"full"}, "units"),
        ("engines", {"opt_in", "sglang"}, "sglang"),
        ("tiny_models", {"opt_in"}, "models"),
        ("integration", {"smoke"}, "labs"),
        ("integration", {"smoke", "fleet"}, "fleets"),
        ("integration", {"full"}, "fleets"),
        ("integration", {"opt_in"}, "fleets"),
        ("integration", {"opt_in", "sglang"}, "sglang"),
        ("lab/simulation", {"full"}, "labs"),
    ],
)
def test_each_test_has_one_piece(directory: str, tiers: set[str], piece: str) -> None:
    assert piece_of(TESTS / directory, TESTS, tiers) == piece


def test_the_script_runs_every_piece(script: ModuleType) -> None:
    assert tuple(script.PIECES) == PIECES


def ended(test: str, **phases: str) -> list[SimpleNamespace]:
    """Reports of pytest for the phases of a test."""
    return [
        SimpleNamespace(nodeid=test, duration=0.25, failed=outcome == "failed", when=when)
        for when, outcome in phases.items()
    ]


def test_a_test_has_passed_if_none_of_its_phases_failed(script: ModuleType, tmp_path: Path) -> None:
    record = script.Record(tmp_path / "tree")
    plugin = TestRecord(record.file, "units")
    for report in (
        *ended("good", setup="passed", call="passed", teardown="passed"),
        *ended("bad", setup="passed", call="failed", teardown="passed"),
        *ended("unmade", setup="failed", teardown="passed"),
        *ended("left", setup="passed", call="passed", teardown="failed"),
        *ended("broken off", setup="passed"),
        *ended("file::one[a@b]@models", setup="passed", call="passed", teardown="passed"),
    ):
        plugin.pytest_runtest_logreport(report)
    assert record.outcomes() == {
        "good": ("units", "passed", 0.75),
        "bad": ("units", "failed", 0.75),
        "unmade": ("units", "failed", 0.5),
        "left": ("units", "failed", 0.75),
        "file::one[a@b]": ("units", "passed", 0.75),
    }
    for report in ended("bad", setup="passed", call="passed", teardown="passed"):
        plugin.pytest_runtest_logreport(report)
    assert record.outcomes()["bad"].outcome == "passed", "the last result counts"


def test_another_file_is_another_tree(script: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout

    git("init", "--quiet")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git("add", "--all")
    git("commit", "--quiet", "--message", "one")
    first = script.tree_hash(tmp_path)
    (tmp_path / "ignored").write_text("x")
    assert script.tree_hash(tmp_path) == first
    (tmp_path / "new").write_text("x")
    second = script.tree_hash(tmp_path)
    assert second != first
    assert git("status", "--porcelain") == "?? new\n", "nothing is staged by it"
    git("add", "--all")
    git("commit", "--quiet", "--message", "two")
    assert script.tree_hash(tmp_path) == second, "committed or not"


def test_a_mended_test_leaves_the_results_of_live_tests(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tree(**files: str) -> str:
        for name, content in files.items():
            path = (
                tmp_path
                / {"test": "tests/x/test_a.py", "shared": "tests/conftest.py", "code": "code.py"}[name]
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        found: str = script.tree_hash(tmp_path)
        return found

    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text(".test-full\n")
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "--message", "one"], cwd=tmp_path, check=True)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    records = tmp_path / ".test-full"
    first = tree(test="1", shared="1", code="1")
    record = script.Record(records / first)
    for piece, test, outcome in (
        ("fleets", "tests/integration/test_b.py::good", "passed"),
        ("fleets", "tests/integration/test_b.py::bad", "failed"),
        ("labs", "tests/x/test_a.py::mended", "passed"),
        ("units", "tests/y/test_c.py::reads_all_files", "passed"),
    ):
        record.add(piece, test, outcome, 1.0)
    second = tree(test="2")
    now = script.Record(records / second)
    assert now.take_over(second, records / first) == 1
    assert now.outcomes() == {"tests/integration/test_b.py::good": ("fleets", "passed", 1.0)}
    assert now.take_over(second, records / first) == 0, "once"
    for changed in ({"shared": "2"}, {"shared": "1", "code": "2"}):
        third = tree(**changed)
        assert script.Record(records / third).take_over(third, records / second) == 0
    assert script.Record(records / first).take_over(first, records / "0123456789abcdef") == 0, (
        "git has no such tree"
    )


TESTED = {"a": "units", "b": "units", "c": "labs", "scripts/check": "checks", "scripts/soak": "soak"}


def test_the_last_line_counts_what_never_ran(script: ModuleType) -> None:
    outcomes = {
        "a": script.Outcome("units", "passed", 2.0),
        "b": script.Outcome("units", "failed", 1.0),
        "scripts/check": script.Outcome("checks", "passed", 30.0),
    }
    *table, last = script.summary("f00", TESTED, outcomes, ["units"])
    assert last == "tree f00: 2 of 5 passed, 1 failed, 2 never ran (labs 1, soak 1)"
    assert "units          1       1          0        3" in table
    assert "failed: b" in table
    assert "slowest files: a 2 s, b 1 s" in table, "of the pieces that were chosen"


@pytest.fixture
def world(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The script with a tree of its own, pieces that are not run, and what each is called with."""
    called: list[tuple[str, list[str]]] = []

    def ran(piece: str, words: list[str], _record: object, left_out: tuple[str, ...] = ()) -> bool:
        called.append((piece, [*words, *left_out]))
        return piece != "labs"

    (tmp_path / ".test-full/f00").mkdir(parents=True)
    (tmp_path / ".test-full/f00/tests.json").write_text(json.dumps({"a": "units", "b": "units", "c": "labs"}))
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "tree_hash", lambda: "f00")
    monkeypatch.setattr(script, "run_tests", ran)
    monkeypatch.setattr(script, "run_command", ran)
    record = script.Record(tmp_path / ".test-full/f00")
    record.add("units", "a", "passed", 1.0)
    record.add("units", "b", "failed", 1.0)
    record.add("checks", "scripts/check", "passed", 1.0)
    return called


def test_what_has_passed_is_left_out_only_on_request(
    script: ModuleType, world: list[tuple[str, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--pieces", "units,checks"]) == 0
    assert world == [("checks", []), ("units", [])]
    world.clear()
    assert script.main(["--pieces", "checks,units,soak", "--resume", "--soak-minutes", "5"]) == 0
    assert world == [("units", ["a"]), ("soak", ["--minutes", "5.0"])]
    assert "checks: has passed on tree f00" in capsys.readouterr().out


def test_the_soak_takes_half_an_hour_unless_another_time_is_given(
    script: ModuleType, world: list[tuple[str, list[str]]]
) -> None:
    script.main(["--pieces", "soak"])
    assert world == [("soak", ["--minutes", "30.0"])]


def test_a_piece_that_fails_is_an_exit_code(script: ModuleType, world: list[tuple[str, list[str]]]) -> None:
    assert script.main(["--pieces", "labs,units", "tests/lab", "-x"]) == 1
    assert world == [("units", ["tests/lab", "-x"]), ("labs", ["tests/lab", "-x"])]


def test_a_path_is_of_all_pieces_that_are_tests(
    script: ModuleType, world: list[tuple[str, list[str]]]
) -> None:
    script.main(["tests/lab"])
    assert [piece for piece, _ in world] == ["units", "labs", "models", "fleets", "sglang"]


def test_an_unknown_piece_is_refused(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--pieces", "units,nope"])
    assert "no such piece: nope" in capsys.readouterr().err


@pytest.mark.full
def test_pytest_runs_one_piece_and_leaves_out_what_is_listed(tmp_path: Path) -> None:
    """As the script calls it, with two processes: each collects, and one file has the results."""
    record, left_out = tmp_path / "results.jsonl", tmp_path / "left-out"

    def run(processes: str) -> int:
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            processes,
            "-p",
            "no:cacheprovider",
            "tests/test_pictures.py",
        ]
        options = ["--piece=units", f"--record={record}", f"--leave-out={left_out}", "--no-skips"]
        return subprocess.run([*argv, *options], cwd=ROOT, check=False, capture_output=True).returncode

    left_out.write_text("")
    assert run("2") == 0
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {(line["piece"], line["outcome"]) for line in lines} == {("units", "passed")}
    left_out.write_text("\n".join(line["test"] for line in lines))
    assert run("0") == 5
    assert len(record.read_text().splitlines()) == len(lines)
