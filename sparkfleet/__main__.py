"""Runs the command line as `python -m sparkfleet`."""

from sparkfleet.cli.entry import main

main()
