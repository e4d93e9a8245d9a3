"""Applies known-bad combinations and remembered failures to candidates."""
