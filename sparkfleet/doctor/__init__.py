"""Checks of nodes and links: the fault, its meaning, the command to type."""
