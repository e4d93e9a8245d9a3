"""The live view of `sparkfleet top`. Imports textual, which is an extra: only `cli/fleet/top.py` imports this package."""
