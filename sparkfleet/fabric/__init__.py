"""Cables and rails: found from both ends, addressed by netplan, measured."""
