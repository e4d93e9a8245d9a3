"""Help and refusal of arguments for scripts that know one option at most.

A script that writes files must not take a typo for no argument.
"""

from __future__ import annotations

import sys


def check_arguments(usage: str | None, *known: str, words: bool = False) -> None:
    """Ends the script after printing its usage for `--help`, or with an error for an argument that it does not know.

    Args:
        usage: docstring of the script.
        known: its options.
        words: arguments that are no options are known, too.
    """
    given = sys.argv[1:]
    if {"-h", "--help"} & set(given):
        print((usage or "").strip())
        sys.exit(0)
    for one in given:
        if one not in known and not (words and not one.startswith("-")):
            expected = ", ".join(known) or ("files or names" if words else "none")
            sys.exit(f"unknown argument: {one}. Expected {expected}; --help prints the usage.")
