"""Runs the command line as `python -m sparkfleet`."""

from sparkfleet.cli.main import main

main()
