"""Writes the table of decisions into docs/choosing.md: the plan's choices against the best that anybody published.

    python scripts/decisions.py [--check] [--quick]

`--check` writes nothing and ends with 1 if the page is not what would be written. Choices change whenever knowledge does,
so run it after scripts/fit.py and after every change of the planner. `--quick` leaves the table of decisions with less
evidence as it is, which takes two thirds of the time: scripts/test-full checks it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sparkfleet.accuracy.decisions import decide, published_cases
from sparkfleet.accuracy.holdouts import holdout_table, holdouts

PAGE = Path(__file__).resolve().parent.parent / "docs" / "choosing.md"
BEGIN, END = "<!-- decisions: written by scripts/decisions.py -->", "<!-- end of decisions -->"


def main() -> int:
    """Write the table, or check it."""
    page, cases = PAGE.read_text(), published_cases()
    with_less = held_out(page) if "--quick" in sys.argv else holdout_table(holdouts(cases))
    wanted = with_table(page, f"{with_less}\n\n{decide(cases, unseen=True).markdown()}")
    if "--check" in sys.argv:
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


def held_out(page: str) -> str:
    """The first table of those that are written: of the decisions with less evidence."""
    return page.partition(f"{BEGIN}\n\n")[2].partition("\n\n")[0]


def with_table(page: str, table: str) -> str:
    """A page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check", "--quick")
    sys.exit(main())
