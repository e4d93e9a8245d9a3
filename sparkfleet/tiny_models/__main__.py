"""Builds missing checkpoints and prints their directories, or prints the table of built models.

`python -m sparkfleet.tiny_models build NAME...` and `python -m sparkfleet.tiny_models table`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparkfleet.errors import SparkfleetError
from sparkfleet.tiny_models import cache, table
from sparkfleet.tiny_models.progress import Printer, silent

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Builds or prints; progress goes to standard error, results to standard output."""
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.tiny_models", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="build a checkpoint, unless it is built")
    build.add_argument("names", metavar="NAME", nargs="+")
    build.add_argument("--quiet", action="store_true", help="print no progress")
    printed = verbs.add_parser(
        "table", help="print each model's criterion and, if it is built, its measurements"
    )
    for verb in (build, printed):
        verb.add_argument(
            "--cache", type=Path, help="directory of checkpoints (default: under the XDG cache directory)"
        )
    given = parser.parse_args(argv)
    if given.verb == "table":
        print("\n".join(table.lines(given.cache)))
        return 0
    try:
        for name in given.names:
            print(_ensure(name, given.cache, given.quiet))
    except SparkfleetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: the partial build was removed.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _ensure(name: str, directory: Path | None, quiet: bool) -> Path:
    if quiet or cache.is_built(name, directory):
        return cache.ensure(name, silent, directory)
    with Printer(sys.stderr) as show:
        return cache.ensure(name, show, directory)


if __name__ == "__main__":
    sys.exit(main())
