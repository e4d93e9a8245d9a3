"""Brings a node of the fleet up and down: Ray watchdog, boot services, prestarted engines."""
