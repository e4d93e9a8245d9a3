"""Verbs of the command line: arguments and output only."""
