"""The script that writes every generated file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, in a directory with one program that writes and one file that it writes itself."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "scripts" / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program = """
import pathlib, sys
page = pathlib.Path("page")
if "--check" in sys.argv:
    sys.exit(not page.exists())
page.write_text("new")
"""
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "rules.md").write_text("old")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "WRITERS", (("program.py",),))
    monkeypatch.setattr(module, "texts", lambda: [(tmp_path / "rules.md", "new")])
    return module


def test_a_check_names_what_is_not_current_and_writes_nothing(
    generated: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert generated.main(check=True, goldens=False) == 1
    assert "stale: rules.md\n" in capfd.readouterr().out
    assert (tmp_path / "rules.md").read_text() == "old"
    assert not (tmp_path / "page").exists()


def test_what_was_written_is_current(generated: ModuleType, tmp_path: Path) -> None:
    assert generated.main(check=False, goldens=False) == 0
    assert [(tmp_path / name).read_text() for name in ("rules.md", "page")] == ["new", "new"]
    assert generated.main(check=True, goldens=False) == 0


@pytest.mark.parametrize("left_alone", ["rules.md", "page"])
def test_one_file_is_enough(generated: ModuleType, tmp_path: Path, left_alone: str) -> None:
    generated.main(check=False, goldens=False)
    changed = tmp_path / ("page" if left_alone == "rules.md" else "rules.md")
    changed.unlink() if changed.name == "page" else changed.write_text("other")
    assert generated.main(check=True, goldens=False) == 1


def test_every_program_with_a_check_is_run() -> None:
    """A script that writes a file of the repository is in the list, or named as left out."""
    text = (ROOT / "scripts" / "generated.py").read_text()
    writers = [one for one in (ROOT / "scripts").glob("*.py") if '"--check"' in one.read_text()]
    assert len(writers) > 5
    assert [
        one.name for one in writers if one.name != "generated.py" and f"scripts/{one.name}" not in text
    ] == []
    assert all((ROOT / name).exists() for name in re.findall(r'"(tests/[\w/]+\.py)"', text))
