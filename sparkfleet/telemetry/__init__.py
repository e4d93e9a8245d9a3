"""Definitions of metrics and scrape targets."""
