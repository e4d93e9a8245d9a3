"""Verbs of the endpoint and its clients: keys, questions, routes, usage."""
