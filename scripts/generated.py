"""Writes every file that is made from code or knowledge, in about a minute; `git diff` shows what a change made of them.

    python scripts/generated.py [--check] [--goldens]

`--check` writes nothing, names each file that is not current, and ends with 1 if there is one: scripts/check runs it.
`--goldens` also writes the plans and dry runs that tests compare with; each choice in them that changed needs a reason. Left
out, because they take longer or measure: scripts/fit.py, scripts/pictures, the last table of scripts/decisions.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkfleet.cli import completion, completion_table
from sparkfleet.knowledge.rules import rules_page
from sparkfleet.knowledge.rules.rules import load_book

ROOT = Path(__file__).resolve().parent.parent
WRITERS: Sequence[tuple[str, ...]] = (
    ("-m", "sparkfleet.specs.schema"),
    ("scripts/reference.py",),
    ("scripts/observe.py",),
    ("scripts/grafana.py",),
    ("scripts/evidence.py",),
    ("scripts/field_reports.py",),
    ("scripts/decisions.py", "--quick"),
    ("scripts/sbom.py",),
)
"""Programs that write their files, and with `--check` name those that are not current; some read files of those before."""
GOLDENS = (
    "tests/planner/test_golden.py",
    "tests/planner/test_most_run.py",
    "tests/cli/planning/test_dry_run.py",
)


def texts() -> Iterator[tuple[Path, str]]:
    """Files that have no program of their own, with their content."""
    yield ROOT / "docs" / "rules.md", rules_page.render(load_book())
    yield completion.FILE, completion_table.text()


def main(*, check: bool, goldens: bool) -> int:
    """Write the files, or check them. 1 if one is not current, or if a program failed."""
    failed = False
    for path, text in texts():
        if path.read_text(encoding="utf-8") != text:
            failed |= check
            print(f"{'stale' if check else 'wrote'}: {path.relative_to(ROOT)}", flush=True)
            if not check:
                path.write_text(text, encoding="utf-8")
    for writer in WRITERS:
        failed |= _run(*writer, *(["--check"] if check else [])) != 0
    if goldens and not check:
        failed |= _run("-m", "pytest", "-q", *GOLDENS, SPARKFLEET_GOLDEN="write") != 0
    if failed and check:
        print("To write them: python scripts/generated.py")
    return int(failed)


def _run(*words: str, **variables: str) -> int:
    """Exit code of one of our programs, in this Python."""
    command, env = [sys.executable, *words], {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check", "--goldens")
    sys.exit(main(check="--check" in sys.argv, goldens="--goldens" in sys.argv))
