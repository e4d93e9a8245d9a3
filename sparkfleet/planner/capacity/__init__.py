"""Fits candidates into the memory of their nodes."""
