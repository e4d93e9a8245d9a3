"""Pictures that the README shows are in the repository and small."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 300_000


def test_every_picture_of_the_readme_exists_and_is_small():
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    local = [name for name in shown if not name.startswith("https://")]
    assert {"docs/img/plan.svg", "docs/img/status.svg"} <= set(local)
    for name in local:
        assert 1000 < (ROOT / name).stat().st_size < LARGEST, name
