"""`sparkfleet version`."""

from __future__ import annotations

from sparkfleet import __version__
from sparkfleet.cli.options import JsonOption
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json


def version(json: JsonOption = False) -> None:
    """Print the version."""
    if json:
        print_json({"version": OUTPUT_VERSION, "sparkfleet": __version__})
    else:
        console.print(f"sparkfleet {__version__}")
