"""Channels to nodes: local, SSH and fake."""
