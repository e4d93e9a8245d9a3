"""Accounting of requests: metrics and log line at their end, and usage by key until the controller has stored it."""
