"""Shipped files cite sources that a reader can find: public sources, and files of this repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("sparkfleet", "docs", "scripts", "deployments", "benchmarks")
KINDS = {".py", ".yaml", ".yml", ".md", ".toml", ".txt", ".sh", ".json", ""}
OUTSIDE = re.compile(
    r"(?<![\w./-])(?:\.\./)?(?:shared|research)/[\w-]"  # directories beside the repository
    r"|(?<![\w.-])/(?:work|farm)/"
    r"|\b(?:spark-ops|real-engines|nvidia-recipes|benchmark-notes|engine-models)\b"  # notes that were not published
    r"|\(research\b"
)
MARKDOWN = re.compile(r"(?<![\w./:-])(docs/[\w-]+\.md)\b")


def shipped() -> list[Path]:
    files = [
        path
        for directory in SHIPPED
        for path in (ROOT / directory).rglob("*")
        if path.suffix in KINDS and path.is_file()
    ]
    return [*files, *ROOT.glob("*.md"), ROOT / "pyproject.toml"]


def cited(text: str) -> list[str]:
    """Citations in a text that nobody outside can read."""
    missing = [name for name in MARKDOWN.findall(text) if not (ROOT / name).exists()]
    return [found[0] for found in OUTSIDE.finditer(text)] + missing


def names_in(path: Path) -> list[str]:
    """The same of a file; data files name documents of other repositories."""
    names = cited(path.read_text(errors="replace"))
    return names if path.suffix == ".py" else [name for name in names if not MARKDOWN.fullmatch(name)]


def test_nothing_that_is_shipped_cites_a_file_outside_the_repository() -> None:
    files = shipped()
    assert len(files) > 400
    found = {
        str(path.relative_to(ROOT)): names
        for path in files
        if "__pycache__" not in path.parts and (names := names_in(path))
    }
    assert found == {}


MODULE = re.compile(r"(?<![\w./:-])((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|yaml))\b")


def stale_modules(text: str) -> list[str]:
    """Files of sparkfleet's packages that a text cites and that do not exist. Paths of other projects are left out."""
    package = ROOT / "sparkfleet"
    own = {directory.name for directory in package.iterdir() if directory.is_dir()} | {"tests", "scripts"}
    return [
        name
        for name in MODULE.findall(text)
        if name.split("/")[0] in own and not (ROOT / name).exists() and not (package / name).exists()
    ]


def test_documents_cite_modules_that_exist() -> None:
    documents = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert len(documents) > 8
    found = {path.name: names for path in documents if (names := stale_modules(path.read_text()))}
    assert found == {}
    assert stale_modules("see `planner/heard.py` and `planner/report/diff.py`") == ["planner/heard.py"]
    assert stale_modules("vLLM's `engine/arg_utils.py`") == []


def test_the_check_finds_citations_outside_the_repository() -> None:
    assert cited("until it exits (research/real-engines.md, section 4e).")
    assert cited("closed its port (research on how Sparks are run, 4.2)")
    assert cited('source="spark-ops 6.1"')
    assert cited("see docs/nowhere.md")
    assert not cited("heitor-mocelin/dgx-spark-research; docs/planner.md; Qwen Research License")


def test_the_table_of_decisions_has_each_of_them() -> None:
    text = (ROOT / "docs/decisions.md").read_text()
    titles = re.findall(r"^## (\d+)\. (.+)$", text, re.MULTILINE)
    assert titles == re.findall(r"^\| (\d+) \| \[(.+)\]\(#", text, re.MULTILINE)
