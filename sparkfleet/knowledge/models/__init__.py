"""Checkpoints and speculators that are known by name."""
