"""Connections to engines: requests, answers, errors and usage."""
