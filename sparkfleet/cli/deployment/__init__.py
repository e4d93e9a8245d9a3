"""Verbs of one deployment: starts, changes, shows and deletes it."""
