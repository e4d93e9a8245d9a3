"""Verbs of the fleet and its nodes."""
