"""The site of docs/: built, every link of it checked, and the list of its pages for programs that read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_pages_outside_of_the_site_have_their_targets(name):
    assert lost_links(ROOT / name) == []


def test_a_lost_link_outside_of_the_site_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# One\n\n## A `b`: c\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[1](other.md#a-b-c) [2](other.md#no) [3](no.md) [4](https://example.org) [5](other.md) [6](#no)"
    )
    assert lost_links(page) == ["other.md#no", "no.md", "#no"]


def lost_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    found = re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text())
    parts = ((link, *link.partition("#")[::2]) for link in found)
    return [
        link for link, file, heading in parts if not _is_there(page.parent / file if file else page, heading)
    ]


def _is_there(target: Path, heading: str) -> bool:
    if not heading:
        return target.exists()
    titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if target.exists() else []
    return heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_of_verbs_has_what_help_has():
    """Meanings of arguments, defaults, ranges and environment variables were in `--help` alone."""
    page = (ROOT / "docs" / "reference" / "verbs.md").read_text()
    for words in (
        "    sparkfleet doctor [NODE]…\n",
        "    sparkfleet rollback NAME [GENERATION]\n",
        "| `N` | Number of engine instances, 1 to 1024. |",
        "| `--tail` | Lines to begin with. Default: 100. At least 0. |",
        "| `--max-tokens` | Most tokens of the answer. Default: 256. At least 1. |",
        "Environment variable: `SPARKFLEET_INVENTORY`.",
        "Environment variable: `SPARKFLEET_API_KEY`.",
    ):
        assert words in page
