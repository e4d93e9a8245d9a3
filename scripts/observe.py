"""Writes everything about metrics that is made from code: docs/metrics.md, the rules, the runbook's alerts.

    python scripts/observe.py [--check]

`--check` writes nothing, and ends with 1 if a file is not what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sparkfleet.telemetry import metrics_page, runbook
from sparkfleet.telemetry.alerts import ALERTS
from sparkfleet.telemetry.recording import RECORDING
from sparkfleet.telemetry.rule_values import rule_file

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "observe" / "rules"


def files() -> Iterator[tuple[Path, str]]:
    """Each file with its content."""
    yield ROOT / "docs" / "metrics.md", metrics_page.render()
    yield RULES / "recording.yaml", rule_file(RECORDING, "sparkfleet/telemetry/recording.py")
    yield RULES / "alerts.yaml", rule_file(ALERTS, "sparkfleet/telemetry/alerts/")
    page = ROOT / "docs" / "runbook.md"
    yield page, runbook.with_alerts(page.read_text())


def main() -> int:
    """Write the files, or check them."""
    stale = [(path, text) for path, text in files() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path, _ in stale:
            print(f"stale: {path.relative_to(ROOT)}")
        return int(bool(stale))
    for path, text in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check")
    sys.exit(main())
