"""Keeps the running groups equal to the desired state."""
