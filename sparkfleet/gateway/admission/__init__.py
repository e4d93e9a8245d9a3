"""Admission of requests: limits of keys, and the queue in front of a model's groups."""
