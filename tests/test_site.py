"""The site of docs/: built, every link of it checked, and the list of its pages for programs that read."""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_it_is_built_and_every_link_has_its_target(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "reference" / "verbs" / "index.html").exists()
    assert (tmp_path / "site" / "llms.txt").read_text() == (ROOT / "docs" / "llms.txt").read_text()


def test_a_link_without_a_target_is_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](two.md)\n")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({**settings, "nav": [{"One": "index.md"}]}))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "two.md" in done.stderr


def test_every_page_is_in_the_list():
    listed = (ROOT / "docs" / "llms.txt").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f"({page})" not in listed] == []
